package server

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	ondisk "github.com/openhands/boxkeeper/agentserver/storage"
)

// The directories of a box below its root; all are private to its owner.
const (
	conversationsDir = "conversations" // histories, in the agent-server's own form
	persistenceDir   = "persistence"   // its settings and secrets
	workspaceDir     = "workspace"     // where work is done
	bashEventsDir    = "bash_events"
	homeDir          = "home" // $HOME of everything in the box, caches included
	tmpDir           = "tmp"
	worktreesDir     = "worktrees"
	importedDir      = "imported" // histories that were taken in, read-only; made when needed
	runDir           = "run"      // ours: address, lock, journal
)

// addressFile tells whoever started us where we listen.
const addressFile = runDir + "/address"

// makeLayout makes the directories that are missing. On a full disk it succeeds
// when none is.
func makeLayout(root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("make the box's directory: %w", err)
	}
	below, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("open the box's directory: %w", err)
	}
	defer below.Close()
	for _, name := range []string{conversationsDir, persistenceDir, workspaceDir, bashEventsDir, homeDir, tmpDir, worktreesDir, runDir} {
		if err := below.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make %s: %w", name, err)
		}
		if info, err := below.Stat(name); err != nil || !info.IsDir() {
			return fmt.Errorf("%s is no directory inside the box", name)
		}
	}
	return nil
}

// lockRoot takes the box for this process. The lock ends with the process,
// however that ends.
func lockRoot(root string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(root, runDir, "boxd.lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the box: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, errors.New("another boxd serves this box; end it first")
	}
	return file, nil
}

// secretKey returns the key with which the agent-server encrypts what it keeps,
// made once for each box: with another one its secrets are lost.
func secretKey(root string) (string, error) {
	place := filepath.Join(root, persistenceDir, "secret-key")
	for range 2 {
		text, err := os.ReadFile(place)
		if err == nil {
			if key := strings.TrimSpace(string(text)); key != "" {
				return key, nil
			}
			return "", fmt.Errorf("%s is empty: set OH_SECRET_KEY to the key that this box had, or remove the file to start with a new one", place)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("read the box's secret key: %w", err)
		}
		var raw [32]byte
		rand.Read(raw[:])
		if err := writeOnce(place, []byte(hex.EncodeToString(raw[:])+"\n")); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("keep the box's secret key: %w", err)
		}
	}
	return "", fmt.Errorf("%s cannot be made", place)
}

// writeOnce makes a file with all of its content, or none.
func writeOnce(place string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(place), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(content)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Link(file.Name(), place)
}

// dropStaged removes what imports and deletions of histories left that were cut
// off.
func dropStaged(root string) {
	below, err := os.OpenRoot(root)
	if err != nil {
		return
	}
	defer below.Close()
	_ = below.RemoveAll(importDir) // an import clears its own again
}

// dropPacked removes files that an agent-server packed for a download and could
// not remove, since it was killed. It runs while none is up.
func dropPacked(root string) {
	dir := filepath.Join(root, conversationsDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		id, zipped := strings.CutSuffix(entry.Name(), ".zip")
		if !zipped || !ondisk.IsID(id) || !entry.Type().IsRegular() {
			continue
		}
		// Only where its source is there to be packed again.
		if info, err := os.Lstat(filepath.Join(dir, id)); err == nil && info.IsDir() {
			os.Remove(filepath.Join(dir, entry.Name()))
		}
	}
}
