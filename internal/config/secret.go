package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

const (
	maxSecretBytes = 64 << 10
	refForms       = "must be a reference: env:NAME, file:/absolute/path or credential:NAME; the value itself never goes here"
)

// splitRef takes a reference apart. Its error never repeats the reference: it
// may be a secret that was put in the wrong place.
func splitRef(ref string) (kind, name string, err error) {
	kind, name, found := strings.Cut(ref, ":")
	ok := false
	switch kind {
	case "env":
		ok = envNameForm.MatchString(name)
	case "file":
		ok = filepath.IsAbs(name) && !strings.ContainsRune(name, 0)
	case "credential":
		ok = credentialRef.MatchString(name)
	}
	if !found || !ok {
		return "", "", box.Invalidf("secret", "%s", refForms)
	}
	return kind, name, nil
}

// ResolveSecret returns the value that a reference of the configuration names:
// "env:NAME", "file:/absolute/path" or "credential:NAME", which is a file of
// that name in the directory "credentials" of the data directory. One newline
// at the end is taken off. Read it where it is used and keep it no longer.
//
// Invalid: the reference has no such form. NotFound: it names nothing.
// FailedPrecondition: it names something that cannot be used, such as a
// credential that others may read.
func (c Config) ResolveSecret(ref string) (box.Secret, error) {
	kind, name, err := splitRef(ref)
	if err != nil {
		return "", err
	}
	var text string
	switch kind {
	case "env":
		value, ok := c.env(name)
		if !ok {
			return "", box.Errorf(box.ClassNotFound, "secret %s: the environment of this process has no such variable; set it where the program is started", ref)
		}
		text = value
	case "file":
		// Mounted secrets are often readable by a group, so only own files are
		// held to more.
		if text, err = readSecret(ref, name, c.below(name)); err != nil {
			return "", err
		}
	case "credential":
		if text, err = readSecret(ref, filepath.Join(c.DataDir, credentialsDir, name), true); err != nil {
			return "", err
		}
	}
	text = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
	switch {
	case text == "":
		return "", box.Errorf(box.ClassFailedPrecondition, "secret %s is empty", ref)
	case strings.ContainsRune(text, 0):
		return "", box.Errorf(box.ClassFailedPrecondition, "secret %s holds a NUL byte, which no environment variable can hold", ref)
	}
	return box.Secret(text), nil
}

// SpecSecret resolves a reference of a spec, as ResolveSecret does. Who writes
// a spec must not thereby read this machine: what belongs to boxkeeper itself
// and what the settings specs.env and specs.files leave out is
// FailedPrecondition.
func (c Config) SpecSecret(ref string) (box.Secret, error) {
	kind, name, err := splitRef(ref)
	if err != nil {
		return "", err
	}
	allowed := !slices.Contains(c.ownSecrets(), ref)
	switch kind {
	case "env":
		allowed = allowed && c.specMayUseEnv(name)
	case "file":
		allowed = allowed && c.specMayUseFile(name)
	case "credential":
	}
	if !allowed {
		return "", box.Errorf(box.ClassFailedPrecondition, "secret %s may not be used by a workspace; use another, or allow it with %s or %s", ref, settingSpecEnv, settingSpecFiles)
	}
	return c.ResolveSecret(ref)
}

func (c Config) env(name string) (string, bool) {
	if c.lookup == nil {
		return "", false
	}
	return c.lookup(name)
}

func (c Config) specMayUseEnv(name string) bool {
	if strings.HasPrefix(name, "BOXKEEPER_") || strings.HasPrefix(name, "TEMPORAL_") {
		return false
	}
	if c.storeIsS3() && strings.HasPrefix(name, "AWS_") {
		return false
	}
	if c.SpecEnv == nil {
		return true
	}
	for _, allowed := range c.SpecEnv {
		prefix, wild := strings.CutSuffix(allowed, "*")
		if name == allowed || wild && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func (c Config) specMayUseFile(path string) bool {
	// Links count where they lead: a name inside an allowed directory may point
	// out of it. What cannot be resolved fails when it is read.
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = filepath.Clean(path)
	}
	// Files of the kernel tell about this process, its environment included.
	if c.below(real) || c.below(path) || c.isKey(real) || within(real, "/proc") {
		return false
	}
	for _, own := range slices.Concat(c.storeFiles(), c.toolFiles()) {
		if within(real, realPath(own)) {
			return false
		}
	}
	if c.SpecFiles == nil {
		return true
	}
	for _, allowed := range c.SpecFiles {
		if within(real, realPath(allowed)) {
			return true
		}
	}
	return false
}

func (c Config) storeIsS3() bool { return strings.HasPrefix(c.Exports, "s3:") }

// storeFiles are where AWS's tools keep the credentials of the export store,
// with which a box could empty it.
func (c Config) storeFiles() []string {
	if !c.storeIsS3() {
		return nil
	}
	var out []string
	for _, name := range []string{"AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
		if path, ok := c.env(name); ok && path != "" {
			out = append(out, path)
		}
	}
	if home := c.home(); home != "" {
		out = append(out, filepath.Join(home, ".aws"))
	}
	return out
}

// toolFiles are where docker and doctl keep what opens engines, registries and
// accounts. Whoever may speak to an engine is root on its machine.
func (c Config) toolFiles() []string {
	var out []string
	if path, ok := c.env("DOCKER_CERT_PATH"); ok && filepath.IsAbs(path) {
		out = append(out, path)
	}
	if home := c.home(); home != "" {
		out = append(out, filepath.Join(home, ".docker"))
	}
	for _, dir := range []string{c.dockerDir(), c.doctlDir(runtime.GOOS)} {
		if dir != "" {
			out = append(out, dir)
		}
	}
	return out
}

// StoreSecrets resolves the keys that open the export store; see ResolveSecret.
func (c Config) StoreSecrets() ([]box.Secret, error) {
	var out []box.Secret
	for _, ref := range c.Identities {
		secret, err := c.ResolveSecret(ref)
		if err != nil {
			return nil, err
		}
		out = append(out, secret)
	}
	return out, nil
}

// ownSecrets are the references to what belongs to boxkeeper itself.
func (c Config) ownSecrets() []string {
	own := append([]string{c.InstallationSecret}, c.Identities...)
	for _, w := range c.Webhooks {
		own = append(own, w.Keys...)
	}
	for _, p := range c.Providers {
		own = append(own, p.credentials()...)
	}
	// Those of the instances that other workers serve may stand in the same environment.
	for _, driver := range Drivers() {
		known, _ := credentialOf(driver)
		own = append(own, known.defaults...)
	}
	return own
}

// isKey reports whether path is the file of a secret of boxkeeper's own, by
// whatever name.
func (c Config) isKey(path string) bool {
	for _, ref := range c.ownSecrets() {
		kind, name, err := splitRef(ref)
		if err != nil || kind != "file" {
			continue
		}
		a, errA := os.Stat(path)
		b, errB := os.Stat(name)
		if errA == nil && errB == nil && os.SameFile(a, b) {
			return true
		}
	}
	return false
}

// below reports whether path is in the data directory, by whatever name: links,
// mounts and file systems that fold case give a directory more than one.
func (c Config) below(path string) bool {
	if within(path, c.DataDir) || within(path, realPath(c.DataDir)) {
		return true
	}
	data, err := os.Stat(c.DataDir)
	if err != nil {
		return false // there is none yet, so nothing is in it
	}
	for {
		if info, err := os.Stat(path); err == nil && os.SameFile(info, data) {
			return true
		}
		up := filepath.Dir(path)
		if up == path {
			return false
		}
		path = up
	}
}

func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// readSecret reads a secret's file. An own one must be closed to others.
func readSecret(ref, path string, own bool) (string, error) {
	if own && isOpenToOthers(path) {
		return "", box.Errorf(box.ClassFailedPrecondition, "secret %s can be read by other users of this machine; run: chmod 600 %s", ref, shellWord(path))
	}
	data, err := readSmall(path, maxSecretBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", box.Errorf(box.ClassNotFound, "secret %s: there is no file %s on this machine", ref, path)
	case err != nil:
		return "", box.Errorf(box.ClassFailedPrecondition, "read secret %s from %s: %w", ref, path, err)
	}
	return string(data), nil
}

// isOpenToOthers reports whether other users have any access to a file that is there.
func isOpenToOthers(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Perm()&0o077 != 0
}

// shellWord quotes a path for a command that a person copies.
func shellWord(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
