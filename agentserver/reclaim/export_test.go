package reclaim

// WithFault returns opts with a function that is called at each step of a pass.
func WithFault(opts Options, fault func(step string)) Options {
	opts.fault = fault
	return opts
}

// Idle waits until nothing is deleted and nobody looks after the trash.
func (r *Reclaimer) Idle() { r.working.Wait() }
