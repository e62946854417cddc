package activities

import (
	"sync"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// proofLife is how long after an export was read back whole a look at its
// objects is enough. It spans the step between the proof and the destruction,
// and not a provider that fails for days.
const proofLife = time.Hour

// proofs remembers which exports this process has read back. Another process
// knows nothing of them and reads for itself. The zero value is ready.
type proofs struct {
	mu sync.Mutex
	of map[string]proof // by the manifest's key
}

type proof struct {
	report exports.Report
	at     time.Time
}

// old counts on both clocks: the monotonic one stops while a machine sleeps.
func (p proof) old(now time.Time) bool {
	return now.Sub(p.at) > proofLife || now.Round(0).Sub(p.at.Round(0)).Abs() > proofLife
}

func (p *proofs) keep(report exports.Report, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]proof{}
	}
	for key, one := range p.of {
		if one.old(now) {
			delete(p.of, key)
		}
	}
	p.of[report.Receipt.Key] = proof{report, now}
}

// find returns the proof of a receipt, if it is young.
func (p *proofs) find(receipt box.Receipt, now time.Time) (exports.Report, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one, ok := p.of[receipt.Key]
	return one.report, ok && one.report.Receipt == receipt && !one.old(now)
}
