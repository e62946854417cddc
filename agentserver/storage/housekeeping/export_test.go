package housekeeping

import "time"

// At makes the keeper go by another time.
func (k *Keeper) At(now time.Time) *Keeper {
	k.now = func() time.Time { return now }
	return k
}
