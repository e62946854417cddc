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
	// Of the files in it that have one name.
	allocated, apparent int64
	dirs                string        // names of directories, each with a NUL at its end
	more                *memoryMore   // nil for nearly all
	files               uint32        // names of all that is no directory
	count               uint32        // of dirs
	walk                atomic.Uint32 // the last one that met it
	asked               uint8         // which of Options.Watch it was read for
}

type memoryMore struct {
	links   []link
	watched string // a name that was watched for
}

// links are the files in it that have several names.
func (m *memory) links() []link {
	if m.more == nil {
		return nil
	}
	return m.more.links
}

func (m *memory) watched() string {
	if m.more == nil {
		return ""
	}
	return m.more.watched
}

// size is that of the directory and the files in it that have one name.
func (m *memory) size(blocks, size uint64) Size {
	return Size{
		Allocated: m.allocated + int64(blocks)*512, Apparent: m.apparent + int64(size), //nolint:gosec // no directory is that large
		Files: int64(m.files), Dirs: 1, Inodes: int64(m.files) - int64(len(m.links())) + 1,
	}
}

// cost estimates what the memory of a directory takes, in bytes: itself, its
// place in the map, and what it points to.
func (m *memory) cost() int64 {
	cost := 120 + int64(len(m.dirs))
	if m.more != nil {
		cost += 48 + int64(len(m.more.watched)) + 24*int64(len(m.more.links))
	}
	return cost
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
func (c *cache) keep(news []fresh, walk uint32, whole bool) {
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
