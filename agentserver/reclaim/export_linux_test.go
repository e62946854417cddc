package reclaim

// LookForUsers is the search of a pass.
func (r *Reclaimer) LookForUsers() error {
	_, err := r.users(map[string]string{"entry": "/somewhere"})
	return err
}
