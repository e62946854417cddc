package repo

import "syscall"

// dieWithUs makes the kernel end git when we end, however that happens.
func dieWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
