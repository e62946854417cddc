package scan

import "sync/atomic"

// identity is a directory, by its numbers.
type identity struct {
	ino uint64
	dev uint32
}

// memory is one directory as it was read. While its times are the same, so are
// the names in it.
type memory struct {
	mtime, ctime int64 // nanoseconds
	files        Size  // of what lies in it and has one name
	dirs         string
	count        int // of dirs
	links        []link
	watched      string        // a name that was watched for
	asked        int           // which of Options.Watch that was
	walk         atomic.Uint64 // the last one that met it
}

// cost estimates what the memory of a directory takes, in bytes: itself, its
// place in the map, and what it points to.
func (m *memory) cost() int64 {
	return 216 + int64(len(m.dirs)) + int64(len(m.watched)) + 32*int64(len(m.links))
}

// cache remembers directories. During a walk it is only read.
type cache struct {
	most, used int64
	known      map[identity]*memory
	// elsewhere is a fingerprint of the files that had names outside of what was
	// measured, at the last walk.
	elsewhere uint64
}

// fresh is a directory that a walk read.
type fresh struct {
	id identity
	*memory
}

// keep takes over what a walk read. What it did not meet is forgotten, when it
// met everything.
func (c *cache) keep(news []fresh, walk uint64, whole bool) {
	if whole {
		for id, old := range c.known {
			if old.walk.Load() != walk {
				c.used -= old.cost()
				delete(c.known, id)
			}
		}
	}
	for _, one := range news {
		if old := c.known[one.id]; old != nil {
			c.used -= old.cost()
			delete(c.known, one.id)
		}
		if cost := one.cost(); c.used+cost <= c.most {
			c.used += cost
			c.known[one.id] = one.memory
		}
	}
}
