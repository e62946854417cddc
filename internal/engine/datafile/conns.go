package datafile

import (
	"io"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"modernc.org/sqlite"

	"github.com/openhands/boxkeeper/box"
)

// Conns follows the connection that the server has to one data file.
//
// It exists because the server's pool never closes one, and hands a later
// engine of the same process the old connection, which after a restore would
// be a connection to the replaced file. So each engine has a tag in its data
// source names, and closes what carries it.
type Conns struct {
	tag string

	mu     sync.Mutex
	sealed bool
	// open is the newest one. The pool has a single connection, and closes it
	// before it opens the next.
	open io.Closer
}

// tagParameter carries the tag in a data source name. Neither SQLite nor the
// driver reads it, and the server does only for the value "true".
const tagParameter = "setup"

// tracked is global because the driver and its hooks are.
var tracked struct { //nolint:gochecknoglobals // see above
	once sync.Once
	mu   sync.Mutex
	last int
	tags map[string]*Conns
}

// TrackConns starts to follow the connections of one engine.
func TrackConns() *Conns {
	hookDriver()
	tracked.mu.Lock()
	defer tracked.mu.Unlock()
	tracked.last++
	c := &Conns{tag: "engine-" + strconv.Itoa(tracked.last)}
	if tracked.tags == nil {
		tracked.tags = map[string]*Conns{}
	}
	tracked.tags[c.tag] = c
	return c
}

// hookDriver has connected called for every connection. The driver has no lock
// of its own around its hooks, so this comes before this package opens any.
func hookDriver() {
	tracked.once.Do(func() { sqlite.RegisterConnectionHook(connected) })
}

// Attributes returns the connection attributes of the server's data source:
// durable (a commit is on the disk when it returns), and waiting for others
// instead of failing.
func (c *Conns) Attributes() map[string]string {
	return map[string]string{
		"mode":         "rw",
		"journal_mode": "wal",
		"synchronous":  "full",
		"busy_timeout": "15000",
		tagParameter:   c.tag,
	}
}

// Close refuses new connections and closes the open one, which puts the log
// into the data file. The caller MUST make sure that it is not in use. Safe to
// repeat.
func (c *Conns) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed = true
	if c.open == nil {
		return nil
	}
	if err := c.open.Close(); err != nil {
		return box.Errorf(box.ClassUnavailable, "close the data file: %w", err)
	}
	c.open = nil
	return nil
}

// Seal refuses new connections and leaves the open one alone.
func (c *Conns) Seal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed = true
}

func (c *Conns) add(conn any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	closer, ok := conn.(io.Closer)
	if !ok {
		return box.Errorf(box.ClassInternal, "the SQLite driver's connections cannot be closed")
	}
	if c.sealed {
		// Late work of a stopped server must not write to a file that another
		// engine may serve by now.
		return box.Errorf(box.ClassFailedPrecondition, "the engine has stopped")
	}
	c.open = closer
	return nil
}

// connected is called by the driver for every connection of this process.
func connected(conn sqlite.ExecQuerierContext, dsn string) error {
	_, query, _ := strings.Cut(dsn, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil //nolint:nilerr // not one of ours
	}
	tracked.mu.Lock()
	c := tracked.tags[values.Get(tagParameter)]
	tracked.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.add(conn)
}
