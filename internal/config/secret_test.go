package config_test

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
)

func load(t *testing.T, env map[string]string) (config.Config, string) {
	t.Helper()
	look, dir := with(t, env)
	c, err := config.Load("", look)
	require.NoError(t, err)
	return c, dir
}

func TestSecretsAreFoundWhereTheReferenceSays(t *testing.T) {
	t.Parallel()
	c, dir := load(t, map[string]string{"TOKEN": "from-env", "EMPTY": ""})
	outside := write(t, filepath.Join(t.TempDir(), "mounted"), "from-file\r\n")
	require.NoError(t, os.Chmod(outside, 0o644))
	write(t, filepath.Join(dir, "credentials", "cloud"), "from-credential\n\n")
	for ref, want := range map[string]box.Secret{
		"env:TOKEN":        "from-env",
		"file:" + outside:  "from-file",
		"credential:cloud": "from-credential\n",
	} {
		got, err := c.ResolveSecret(ref)
		require.NoError(t, err, ref)
		assert.Equal(t, want.Reveal(), got.Reveal())
	}
	for ref, class := range map[string]box.Class{
		"env:NOT_SET":                 box.ClassNotFound,
		"env:EMPTY":                   box.ClassFailedPrecondition,
		"file:" + outside + ".no":     box.ClassNotFound,
		"file:" + filepath.Dir(dir):   box.ClassFailedPrecondition,
		"credential:other":            box.ClassNotFound,
		"credential:../installation":  box.ClassInvalid,
		"credential:..":               box.ClassInvalid,
		"credential:.hidden":          box.ClassInvalid,
		"file:relative":               box.ClassInvalid,
		"env:A-B":                     box.ClassInvalid,
		"vault:x":                     box.ClassInvalid,
		"the-secret-itself":           box.ClassInvalid,
		"":                            box.ClassInvalid,
		"file:/a\x00b":                box.ClassInvalid,
		"ENV:TOKEN":                   box.ClassInvalid,
		"credential:cloud/../cloud":   box.ClassInvalid,
		"env:TOKEN\n":                 box.ClassInvalid,
		"credential:cloud\nsomething": box.ClassInvalid,
	} {
		_, err := c.ResolveSecret(ref)
		assert.Equal(t, class, box.ClassOf(err), "%q: %v", ref, err)
		assert.NotContains(t, err.Error(), "the-secret-itself")
	}
}

func TestHugeAndStrangeSecretFilesAreRefused(t *testing.T) {
	t.Parallel()
	c, _ := load(t, nil)
	dir := t.TempDir()
	huge := filepath.Join(dir, "huge")
	require.NoError(t, os.WriteFile(huge, make([]byte, 64<<10+1), 0o600))
	binary := write(t, filepath.Join(dir, "binary"), "a\x00b")
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{huge, binary, pipe} { // a pipe without a writer must not hang
		_, err := c.ResolveSecret("file:" + path)
		assert.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), path)
	}
}

func TestOwnSecretsMustBeClosedToOthers(t *testing.T) {
	t.Parallel()
	c, dir := load(t, nil)
	path := write(t, filepath.Join(dir, "credentials", "cloud"), "value")
	require.NoError(t, os.Chmod(path, 0o640))
	_, err := c.ResolveSecret("credential:cloud")
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	assert.Contains(t, err.Error(), "chmod 600 "+path)
}

func TestASpecNeverReadsWhatIsOurs(t *testing.T) {
	t.Parallel()
	c, dir := load(t, map[string]string{
		"BOXKEEPER_X": "a-value", "TEMPORAL_API_KEY": "a-value", "OTHER": "a-value", "BOX_TOKEN": "a-value",
	})
	_, err := c.OpenInstallation()
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), "innocent")
	require.NoError(t, os.Symlink(filepath.Join(dir, "installation.key"), link))
	hard := filepath.Join(t.TempDir(), "hard")
	require.NoError(t, os.Link(filepath.Join(dir, "installation.key"), hard))
	for _, ref := range []string{
		"env:BOXKEEPER_X", "env:TEMPORAL_API_KEY", "file:/proc/self/status", "file:/proc/self/../self/environ",
		"file:" + dir + "/installation.key", "file:" + dir + "/x/../installation.key", "file:" + link, "file:" + hard,
	} {
		_, err := c.SpecSecret(ref)
		assert.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), ref)
	}
	got, err := c.SpecSecret("env:OTHER")
	require.NoError(t, err)
	assert.Equal(t, "a-value", got.Reveal())
}

func TestASpecNeverReadsTheKeysOfTheStore(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	write(t, filepath.Join(home, "creds"), "a-value")
	require.NoError(t, os.Mkdir(filepath.Join(home, ".aws"), 0o700))
	write(t, filepath.Join(home, ".aws", "credentials"), "a-value")
	write(t, filepath.Join(home, "other"), "a-value")
	env := map[string]string{
		"BOXKEEPER_EXPORTS": "s3://bucket?region=a", "BOXKEEPER_ENCRYPTION_IDENTITIES": `["env:AGE_KEY", "file:` + home + `/other"]`,
		"AWS_SECRET_ACCESS_KEY": "a-value", "AWS_SHARED_CREDENTIALS_FILE": home + "/creds", "HOME": home, "AGE_KEY": "a-value", "OTHER": "a-value",
	}
	c, _ := load(t, env)
	for _, ref := range []string{
		"env:AWS_SECRET_ACCESS_KEY", "env:AGE_KEY", "file:" + home + "/creds", "file:" + home + "/.aws/credentials", "file:" + home + "/other",
	} {
		_, err := c.SpecSecret(ref)
		assert.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), ref)
	}
	_, err := c.SpecSecret("env:OTHER")
	require.NoError(t, err)
	secrets, err := c.StoreSecrets()
	require.NoError(t, err)
	assert.Equal(t, []box.Secret{"a-value", "a-value"}, secrets)
	// A box of an installation with a directory may be given AWS's.
	delete(env, "BOXKEEPER_EXPORTS")
	c, _ = load(t, env)
	_, err = c.SpecSecret("env:AWS_SECRET_ACCESS_KEY")
	require.NoError(t, err)
}

func TestAllowListsBoundWhatASpecMayUse(t *testing.T) {
	t.Parallel()
	dir, out := t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "in"), "inside")
	write(t, filepath.Join(out, "out"), "outside")
	require.NoError(t, os.Symlink(filepath.Join(out, "out"), filepath.Join(dir, "link")))
	c, _ := load(t, map[string]string{
		"BOXKEEPER_SPECS_ENV": `["BOX_*", "EXACT"]`, "BOXKEEPER_SPECS_FILES": `["` + dir + `"]`,
		"BOX_A": "1", "EXACT": "2", "EXACTLY": "3", "OTHER": "4",
	})
	for ref, allowed := range map[string]bool{
		"env:BOX_A": true, "env:EXACT": true, "env:EXACTLY": false, "env:OTHER": false,
		"file:" + dir + "/in": true, "file:" + out + "/out": false,
		"file:" + dir + "/link": false, "file:" + dir + "/../" + filepath.Base(out) + "/out": false,
	} {
		_, err := c.SpecSecret(ref)
		if allowed {
			assert.NoError(t, err, ref)
		} else {
			assert.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), ref)
		}
	}
}

func TestInstallationIsMadeOnceAndStays(t *testing.T) {
	t.Parallel()
	c, dir := load(t, nil)
	_, err := c.ReadInstallation()
	require.Equal(t, box.ClassNotFound, box.ClassOf(err), "reading makes nothing")
	require.NoFileExists(t, filepath.Join(dir, "installation.key"))

	const racers = 8
	ids := make([]config.Installation, racers)
	var wait sync.WaitGroup
	for i := range racers {
		wait.Go(func() {
			got, err := c.OpenInstallation()
			assert.NoError(t, err)
			ids[i] = got
		})
	}
	wait.Wait()
	for _, id := range ids {
		assert.Equal(t, ids[0].ID, id.ID)
		assert.Equal(t, ids[0].Secret.Reveal(), id.Secret.Reveal())
	}
	assert.Regexp(t, `^[0-9a-f]{8}$`, ids[0].ID)
	assert.Len(t, ids[0].Secret.Reveal(), 64)
	info, err := os.Stat(filepath.Join(dir, "installation.key"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 2, "no temporary file is left")
}

func TestInstallationIDDependsOnTheSecretAlone(t *testing.T) {
	t.Parallel()
	secret := "0123456789abcdef0123456789abcdef"
	var ids []string
	for range 2 {
		c, _ := load(t, map[string]string{"BOXKEEPER_INSTALLATION_SECRET": "env:KEY", "KEY": secret})
		got, err := c.OpenInstallation()
		require.NoError(t, err)
		ids = append(ids, got.ID)
	}
	assert.Equal(t, []string{"d97ce27c", "d97ce27c"}, ids, "a change would orphan every box of every installation")
}

func TestALostKeyIsNeverReplaced(t *testing.T) {
	t.Parallel()
	c, dir := load(t, nil)
	first, err := c.OpenInstallation()
	require.NoError(t, err)
	key := filepath.Join(dir, "installation.key")
	kept, err := os.ReadFile(key)
	require.NoError(t, err)

	require.NoError(t, os.Remove(key))
	_, err = c.OpenInstallation()
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	assert.Contains(t, err.Error(), first.ID)
	require.NoFileExists(t, key)

	write(t, key, "ffffffffffffffffffffffffffffffffffffffff")
	_, err = c.OpenInstallation()
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "another key is not taken either")

	write(t, key, string(kept))
	again, err := c.OpenInstallation()
	require.NoError(t, err)
	assert.Equal(t, first.ID, again.ID)
}

func TestACrashBetweenKeyAndIDIsRepaired(t *testing.T) {
	t.Parallel()
	c, dir := load(t, nil)
	first, err := c.OpenInstallation()
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(dir, "installation.id")))
	again, err := c.OpenInstallation()
	require.NoError(t, err)
	assert.Equal(t, first.ID, again.ID)
	require.FileExists(t, filepath.Join(dir, "installation.id"))
}

func TestShortAndMissingSecretsAreRefused(t *testing.T) {
	t.Parallel()
	short, _ := load(t, map[string]string{"BOXKEEPER_INSTALLATION_SECRET": "env:KEY", "KEY": "too-short"})
	_, err := short.OpenInstallation()
	assertField(t, err, "installation_secret")
	assert.NotContains(t, err.Error(), "too-short")

	c, dir := load(t, map[string]string{"BOXKEEPER_INSTALLATION_SECRET": "env:KEY"})
	_, err = c.OpenInstallation()
	assert.Equal(t, box.ClassNotFound, box.ClassOf(err), "only the default file is ever made")
	require.NoFileExists(t, filepath.Join(dir, "installation.key"))
}
