package storagetest

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// StuckServer mounts a file server that greets the kernel and then never
// answers: whoever asks it anything waits. mode is that of its root. What waits
// gets an error when the test ends.
func StuckServer(t *testing.T, at string, mode uint32) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("this machine has no FUSE: " + err.Error())
	}
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,allow_other", fd, mode)
	if err := unix.Mount("stuck", at, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		t.Skip("this machine does not let us mount FUSE: " + err.Error())
	}
	t.Cleanup(func() {
		_ = unix.Unmount(at, unix.MNT_DETACH)
		unix.Close(fd) // ends the connection
	})
	const headIn, headOut, greeting = 40, 16, 26
	request := make([]byte, 64<<10)
	n, err := unix.Read(fd, request)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, headIn)
	require.EqualValues(t, greeting, binary.NativeEndian.Uint32(request[4:]))
	answer := make([]byte, headOut+64)
	binary.NativeEndian.PutUint32(answer, uint32(len(answer))) //nolint:gosec // 80
	copy(answer[8:16], request[8:16])                          // which request it is for
	body := answer[headOut:]
	binary.NativeEndian.PutUint32(body[0:], 7)     // version 7.31
	binary.NativeEndian.PutUint32(body[4:], 31)    // of the protocol
	binary.NativeEndian.PutUint32(body[20:], 4096) // the longest write
	_, err = unix.Write(fd, answer)
	require.NoError(t, err)
}
