//go:build !linux

package repo

import "syscall"

// dieWithUs has no counterpart here: git then ends by itself, since nobody
// reads its answer.
func dieWithUs(*syscall.SysProcAttr) {}

// goFirst has none either.
func goFirst(int) {}
