package cli

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/config"
)

// checkStart refuses what a worker would refuse to start over, with the setting
// named, as far as it can be seen on this machine: it makes nothing and asks
// nobody. What a worker only warns of is in notes.
func checkStart(ctx context.Context, cfg config.Config) (notes []string, err error) {
	if err := usableDir("data", cfg.DataDir); err != nil {
		return nil, err
	}
	if err := checkKey(cfg); err != nil {
		return nil, err
	}
	if err := checkExports(ctx, cfg); err != nil {
		return nil, err
	}
	for _, w := range cfg.Webhooks {
		for _, ref := range w.Keys {
			if _, err := cfg.ResolveSecret(ref); err != nil {
				notes = append(notes, "webhooks."+w.Name+".keys: "+err.Error()+"; nothing is sent to it before that is mended")
			}
		}
	}
	for _, p := range cfg.Providers {
		if p.Dir != "" {
			if err := usableDir(p.Field(config.SettingDir), p.Dir); err != nil {
				return nil, err
			}
		}
		switch off, err := checkSettings(cfg, p); {
		case box.ClassOf(err) == box.ClassInvalid:
			return nil, err // names the setting by itself
		case err != nil:
			return nil, box.Invalidf("providers."+p.Name, "%v", err)
		case off != nil:
			notes = append(notes, "provider "+p.Name+" is off: "+off.Error())
		}
	}
	return append(notes, ProgramProblems(cfg)...), nil
}

// checkKey looks for the installation's key. The default one is made by the first
// worker.
func checkKey(cfg config.Config) error {
	const field = "installation_secret"
	_, err := cfg.ReadInstallation()
	switch class := box.ClassOf(err); {
	case err == nil, class == box.ClassNotFound && cfg.MakesKey():
		return nil
	case class == box.ClassInvalid:
		return err // names it by itself
	}
	return box.Invalidf(field, "%v", err)
}

// checkExports looks at the export store's address, and at the keys that open it.
func checkExports(ctx context.Context, cfg config.Config) error {
	identities, err := cfg.StoreSecrets()
	if err != nil {
		return box.Invalidf("encryption.identities", "%v", err)
	}
	if _, err := exports.ParseKeys(cfg.Recipients, identities); err != nil {
		return err
	}
	u, err := url.Parse(cfg.Exports)
	if err == nil && u.Scheme == "file" { // opening it would make it
		if u.RawQuery != "" || u.Fragment != "" {
			return box.Invalidf("exports", "a file URL takes no query or fragment; write a \"?\" or \"#\" of a path as %%3F or %%23")
		}
		return usableDir("exports", filepath.Clean(u.Path))
	}
	store, err := exports.OpenWith(ctx, cfg.Exports, exports.Options{}) // sends nothing
	if err != nil {
		return err
	}
	return store.Close()
}

// usableDir refuses a directory that cannot be written, or could not be made.
func usableDir(field, dir string) error {
	at := dir
	for {
		info, err := os.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && filepath.Dir(at) != at:
			at = filepath.Dir(at)
			continue
		case errors.Is(err, syscall.ENOTDIR):
			return box.Invalidf(field, "%s cannot be a directory: something above it is a file; name another", printable(dir))
		case err != nil:
			return box.Invalidf(field, "%s cannot be looked at: %v; let this user in, or name another directory", printable(dir), bare(err))
		case !info.IsDir():
			return box.Invalidf(field, "%s cannot be a directory: %s is a file; name another", printable(dir), printable(at))
		}
		break
	}
	const writeAndEnter = 0o3
	if err := syscall.Access(at, writeAndEnter); err != nil {
		return box.Invalidf(field, "%s: this user may not write in %s (%v); change its owner or mode, or name another directory", printable(dir), printable(at), err)
	}
	return nil
}
