//go:build linux

package reclaim

// LookForUsers is the search of a pass.
func (r *Reclaimer) LookForUsers() error {
	_, err := r.users(map[string]string{"entry": "/somewhere"})
	return err
}

// Remove deletes an entry of the trash, with one worker or with two, and returns
// the bytes and what could not be removed.
func (r *Reclaimer) Remove(name string, workers int) (bytes int64, faults []string) {
	trash, err := r.tree.openTrash()
	if err != nil {
		return 0, []string{err.Error()}
	}
	d := deleter{tree: r.tree, ctx: r.stopped, top: dir{fd: trash}}
	if workers > 1 {
		d.offers = make(chan task)
	}
	d.run(name)
	return d.bytes, d.faults.lines()
}
