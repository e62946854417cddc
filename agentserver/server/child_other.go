//go:build !linux

package server

import (
	"log/slog"
	"syscall"
)

// dieWithUs has no counterpart here: a killed boxd leaves its agent-server
// running until the next start.
func dieWithUs(*syscall.SysProcAttr) {}

// sweep cannot read other processes' environments here; the process group was
// ended already.
func sweep(string, *slog.Logger) {}
