package config

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

const (
	minKeyBytes = 32
	idLabel     = "boxkeeper installation id"
)

// Installation is who owns boxes: the secret that their keys are derived from,
// and the id that marks them.
type Installation struct {
	Secret box.Secret
	ID     string // 8 lower-case hex digits
}

// ReadInstallation returns the installation of this machine and changes
// nothing. NotFound: no key was made yet.
func (c Config) ReadInstallation() (Installation, error) {
	secret, err := c.ResolveSecret(c.InstallationSecret)
	if err != nil {
		if box.ClassOf(err) == box.ClassNotFound {
			if known, had := c.recordedID(); had {
				return Installation{}, c.lostKey(known)
			}
		}
		return Installation{}, err
	}
	if len(secret) < minKeyBytes {
		return Installation{}, box.Invalidf(settingSecret, "holds %d bytes; give at least %d random ones, such as the output of \"openssl rand -hex 32\"", len(secret), minKeyBytes)
	}
	here := Installation{Secret: secret, ID: installationID(secret)}
	if known, had := c.recordedID(); had && known != here.ID {
		return Installation{}, box.Errorf(box.ClassFailedPrecondition,
			"the installation secret was changed: this data directory belongs to installation %s, the secret is of %s, and no box of the former could be reached with it; restore the former secret, or delete %s to start over with new boxes",
			known, here.ID, filepath.Join(c.DataDir, idFile))
	}
	return here, nil
}

// MakesKey reports whether the first worker makes the key where there is none.
func (c Config) MakesKey() bool {
	return c.InstallationSecret == "file:"+filepath.Join(c.DataDir, keyFile)
}

// OpenInstallation returns the installation of this machine and makes its key
// when it has none and the setting is the default. The id is recorded beside
// it, so that a lost or swapped key is noticed instead of replaced. It is safe
// to repeat, also from several processes at once.
func (c Config) OpenInstallation() (Installation, error) {
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return Installation{}, box.Errorf(box.ClassFailedPrecondition, "make the data directory %s: %w", c.DataDir, bare(err))
	}
	here, err := c.ReadInstallation()
	if box.ClassOf(err) == box.ClassNotFound && c.MakesKey() {
		if err := c.makeKey(); err != nil {
			return Installation{}, err
		}
		here, err = c.ReadInstallation()
	}
	if err != nil {
		return Installation{}, err
	}
	if _, had := c.recordedID(); !had {
		if err := writeOnce(c.DataDir, idFile, []byte(here.ID+"\n")); err != nil && !errors.Is(err, fs.ErrExist) {
			return Installation{}, box.Errorf(box.ClassFailedPrecondition, "record the installation id in %s: %w", c.DataDir, bare(err))
		}
		return c.ReadInstallation() // another process may have recorded another
	}
	return here, nil
}

// installationID returns the public id of a secret: it names the installation
// and does not help to guess the secret.
func installationID(secret box.Secret) string {
	mac := hmac.New(sha256.New, []byte(secret.Reveal()))
	mac.Write([]byte(idLabel))
	return hex.EncodeToString(mac.Sum(nil)[:4])
}

func (c Config) recordedID() (string, bool) {
	data, err := readSmall(filepath.Join(c.DataDir, idFile), 64)
	if err != nil {
		return "", !errors.Is(err, fs.ErrNotExist) // unreadable: there is one, and it matches nothing
	}
	return printable(strings.TrimSpace(string(data))), true
}

func (c Config) lostKey(id string) error {
	return box.Errorf(box.ClassFailedPrecondition,
		"the key of installation %s is missing: %s names nothing, and a new key could not reach the boxes that exist; restore it from a backup, or delete %s to start over with new boxes",
		id, c.InstallationSecret, filepath.Join(c.DataDir, idFile))
}

func (c Config) makeKey() error {
	key := make([]byte, minKeyBytes)
	_, _ = rand.Read(key) // never fails; documented
	err := writeOnce(c.DataDir, keyFile, []byte(hex.EncodeToString(key)+"\n"))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return box.Errorf(box.ClassFailedPrecondition, "make the installation key in %s: %w", c.DataDir, bare(err))
	}
	return nil
}

// writeOnce makes a file complete or not at all, and never replaces one: the
// name is given with a hard link, which fails when it is taken.
func writeOnce(dir, name string, data []byte) error {
	tmp, err := os.CreateTemp(dir, "."+name+".*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := tmp.Write(data); err != nil {
		_ = tmp.Close()
		return err
	}
	if err := tmp.Sync(); err != nil {
		_ = tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
