package reclaim_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// filterCalls makes the kernel refuse system calls of this process from here on,
// as container engines do: "openat2,statx:EPERM".
func filterCalls(how string) error {
	calls, word, _ := strings.Cut(how, ":")
	number := map[string]unix.Errno{"EPERM": unix.EPERM, "ENOSYS": unix.ENOSYS}[word]
	known := map[string]uint32{"openat2": unix.SYS_OPENAT2, "statx": unix.SYS_STATX, "name_to_handle_at": unix.SYS_NAME_TO_HANDLE_AT, "renameat2": unix.SYS_RENAMEAT2}
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the number of the call
	for call := range strings.SplitSeq(calls, ",") {
		if known[call] == 0 || number == 0 {
			return fmt.Errorf("no filter for %q", how)
		}
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: known[call], Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(number)},
		)
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	list := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&list)))
	if errno != 0 {
		return errno
	}
	return nil
}

// Every attack again where openat2, and what else is new, is missing or
// filtered away.
func TestAttacksFailWithoutNewSystemCallsToo(t *testing.T) {
	t.Parallel()
	if os.Getenv(apartFilter) != "" {
		t.Skip("runs inside itself")
	}
	attacks := "^(TestSwap|TestScenario|TestMounts|TestNames|TestRandom|TestLinks|TestAHome|TestABind|TestWhatChanged|TestALink|TestTheFilterHolds)"
	for name, filter := range map[string]string{
		"a filter answers EPERM":                   "openat2:EPERM",
		"a kernel before 4.11 has no statx either": "openat2,statx,name_to_handle_at:ENOSYS",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && filter != "openat2:EPERM" {
				t.Skip("one filter is enough for a short run")
			}
			out, err := run(t, surroundings{filter: filter}, []string{"-test.run=" + attacks, "-test.v", "-test.short", "-test.timeout=240s"})
			require.NoError(t, err, "%s", failed(out))
			require.Contains(t, string(out), "--- PASS: TestTheFilterHolds")
			require.NotContains(t, string(out), "no tests to run")
		})
	}
}

// Without renameat2 nothing can be swapped, but all must still be moved.
func TestPassesWorkWithoutRenameat2(t *testing.T) {
	t.Parallel()
	for _, filter := range []string{"renameat2:EPERM", "renameat2:ENOSYS"} {
		out, err := run(t, surroundings{filter: filter}, []string{"-test.run=^(TestAPassTakes|TestNamesDeeper|TestWhatChanged|TestScenario87|TestWhatTook)", "-test.v", "-test.short", "-test.timeout=240s"})
		require.NoError(t, err, "%s", failed(out))
		require.Contains(t, string(out), "--- PASS: TestAPassTakes")
	}
}

// The filter of the first test must be there.
func TestTheFilterHolds(t *testing.T) {
	t.Parallel()
	filter := os.Getenv(apartFilter)
	_, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if !strings.Contains(filter, "openat2") {
		return
	}
	require.Error(t, err)
	var errno syscall.Errno
	require.ErrorAs(t, err, &errno)
	require.Contains(t, filter, unix.ErrnoName(errno))
}
