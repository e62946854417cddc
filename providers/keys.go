package providers

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"github.com/openhands/boxkeeper/box"
)

// minSecretBytes is the least entropy that a key may be derived from.
const minSecretBytes = 32

// KeySource derives the keys of boxes from the secret of an installation, so
// that no box key is ever stored. The zero value derives nothing and is refused
// by [New]. Safe for concurrent use.
type KeySource struct {
	// A function, not the secret: no verb of package fmt and no encoder can
	// print what it closes over.
	derive func(purpose, workspace string, epoch int) box.Secret
}

// NewKeySource returns the source for one installation secret of at least 32
// bytes. Changing the secret changes the keys of all boxes.
func NewKeySource(secret box.Secret) (KeySource, error) {
	if len(secret) < minSecretBytes {
		return KeySource{}, box.Invalidf("installation_secret", "holds %d bytes; give at least %d random ones, such as the output of \"openssl rand -hex 32\"", len(secret), minSecretBytes)
	}
	return KeySource{derive: func(purpose, workspace string, epoch int) box.Secret {
		// No part can hold the separator: purposes are ours, workspaces are
		// [a-z0-9-].
		info := purpose + "|" + workspace + "|" + strconv.Itoa(epoch)
		key, err := hkdf.Key(sha256.New, []byte(secret.Reveal()), nil, info, 32)
		if err != nil { // only for lengths beyond 255 hashes
			return ""
		}
		return box.Secret(hex.EncodeToString(key))
	}}, nil
}

// IsZero reports whether the source derives nothing.
func (k KeySource) IsZero() bool { return k.derive == nil }

// SessionKey returns the key of a box's agent-server: 64 hex digits, the same on
// every call.
func (k KeySource) SessionKey(workspace string, epoch int) box.Secret {
	return k.of("boxkeeper session key", workspace, epoch)
}

// EncryptionKey returns the key with which a box's agent-server encrypts what
// it stores (OH_SECRET_KEY): 64 hex digits, the same on every call.
func (k KeySource) EncryptionKey(workspace string, epoch int) box.Secret {
	return k.of("boxkeeper encryption key", workspace, epoch)
}

func (k KeySource) of(purpose, workspace string, epoch int) box.Secret {
	if k.IsZero() {
		return ""
	}
	return k.derive(purpose, workspace, epoch)
}
