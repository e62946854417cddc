package repo

import (
	"fmt"
	"os"
	"syscall"
)

// dieWithUs makes the kernel end git when we end, however that happens.
func dieWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// goFirst makes the kernel end git, and what git starts, before anything else in
// the box when there is no memory left: we can tell that it was ended, and nobody
// loses work by it.
func goFirst(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0) // where it may not be, git goes like others
}
