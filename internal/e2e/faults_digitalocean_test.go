package e2e_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

// TestFaultsAtDigitalOcean lets sessions live through what goes wrong at the
// service, each beside a session of a colleague that nothing may touch.
func TestFaultsAtDigitalOcean(t *testing.T) {
	t.Parallel()
	type fault = digitaloceantest.Fault
	storm := func(a *managedAgents, ops ...digitaloceantest.Op) func() {
		return func() {
			for _, op := range ops {
				a.Inject(digitaloceantest.TooMany(op, time.Second))
				a.Inject(digitaloceantest.TooMany(op, 0))
			}
		}
	}
	for name, c := range map[string]struct {
		o      digitaloceantest.Options
		script func(a *managedAgents, name string) script
	}{
		"create-lost": {digitaloceantest.Options{}, func(a *managedAgents, _ string) script {
			return script{create: func() {
				a.Inject(fault{Op: digitaloceantest.OpConfigCreate, Cut: true, After: true})
				a.Inject(fault{Op: digitaloceantest.OpCreate, Cut: true, After: true})
			}}
		}},
		"create-late": {digitaloceantest.Options{}, func(a *managedAgents, _ string) script {
			return script{create: func() { a.Inject(fault{Op: digitaloceantest.OpCreate, Cut: true, Late: 3 * time.Second}) }}
		}},
		"create-503": {digitaloceantest.Options{ListLag: time.Second}, func(a *managedAgents, _ string) script {
			return script{create: func() {
				a.Inject(digitaloceantest.Unavailable(digitaloceantest.OpCreate, false))
				a.Inject(digitaloceantest.Unavailable(digitaloceantest.OpCreate, true))
			}}
		}},
		"service-first": {digitaloceantest.Options{}, func(a *managedAgents, name string) script {
			return script{suspend: func() {
				a.Inject(fault{Op: digitaloceantest.OpPause, First: func(s *digitaloceantest.Server) { s.PauseNow(name, "idle") }})
			}}
		}},
		"paused-while-asked": {digitaloceantest.Options{}, func(a *managedAgents, name string) script {
			return script{suspend: func() {
				a.Inject(fault{Op: digitaloceantest.OpGuest, First: func(s *digitaloceantest.Server) { s.PauseNow(name, "idle") }})
			}}
		}},
		"woken-by-a-trigger": {digitaloceantest.Options{}, func(a *managedAgents, name string) script {
			return script{remove: func() { a.ResumeNow(name, "trigger") }, wakes: 2}
		}},
		"slow": {digitaloceantest.Options{Boot: 3 * time.Second, ResumeLag: 3 * time.Second, PortLag: 5 * time.Second, IngressPolls: 3, Destroying: 3 * time.Second}, func(*managedAgents, string) script {
			return script{}
		}},
		"silent-for-20s": {digitaloceantest.Options{}, func(a *managedAgents, name string) script {
			return script{resume: func() {
				a.Inject(fault{Op: digitaloceantest.OpIngress, First: func(s *digitaloceantest.Server) { s.ClosePort(name, 20*time.Second) }})
			}}
		}},
		"502-pages": {digitaloceantest.Options{}, func(a *managedAgents, _ string) script {
			pages := func(op digitaloceantest.Op) func() {
				return func() {
					broken := digitaloceantest.BadGateway(op)
					broken.Times = 3
					a.Inject(broken)
				}
			}
			return script{create: pages(digitaloceantest.OpGuest), suspend: pages(digitaloceantest.OpGet), resume: pages(digitaloceantest.OpGuest), remove: pages(digitaloceantest.OpDelete)}
		}},
		"delete-409": {digitaloceantest.Options{ForgetDestroyed: true}, func(a *managedAgents, name string) script {
			return script{remove: func() { a.HoldDelete(name, 2) }}
		}},
		"delete-lost": {digitaloceantest.Options{DeleteAgain: 404}, func(a *managedAgents, _ string) script {
			return script{remove: func() { a.Inject(fault{Op: digitaloceantest.OpDelete, Cut: true, After: true}) }}
		}},
		"list-without-it": {digitaloceantest.Options{}, func(a *managedAgents, _ string) script {
			return script{create: func() {
				a.Inject(fault{Op: digitaloceantest.OpCreate, Cut: true, After: true})
				a.Inject(fault{Op: digitaloceantest.OpList, Skip: 1, Times: 5, Rewrite: func(body map[string]any) { body["sessions"] = []any{} }})
			}}
		}},
		"not-found-for-a-moment": {digitaloceantest.Options{}, func(a *managedAgents, _ string) script {
			absent := func() { a.Inject(fault{Op: digitaloceantest.OpGet, Status: http.StatusNotFound}) }
			return script{suspend: absent, resume: absent, remove: absent}
		}},
		"429": {digitaloceantest.Options{}, func(a *managedAgents, _ string) script {
			return script{
				create:  storm(a, digitaloceantest.OpConfigCreate, digitaloceantest.OpCreate, digitaloceantest.OpList),
				suspend: storm(a, digitaloceantest.OpPause, digitaloceantest.OpIngress),
				resume:  storm(a, digitaloceantest.OpResume, digitaloceantest.OpGet),
				remove:  storm(a, digitaloceantest.OpDelete, digitaloceantest.OpGet),
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := atDigitalOcean(t, "do-"+name, c.o)
			a.Plant(digitaloceantest.DefaultToken, digitaloceantest.DefaultRegion, "a-colleagues")
			liveThrough(t, a.l, a.place(), c.script(a, nameOf(a.l.ws)))
			audit := a.Audit()
			require.Empty(t, audit.Double)
			require.Empty(t, audit.Alive)
			require.Empty(t, audit.ForeignGone)
			require.Empty(t, audit.ForeignTouched)
			require.Zero(t, a.environments(), "an environment is left, with its secrets")
			if name != "woken-by-a-trigger" && name != "slow" {
				require.NotZero(t, a.spoiled(), "nothing went wrong")
			}
		})
	}
}

// environments counts those that were made and not deleted.
func (a *managedAgents) environments() (n int) {
	for _, r := range a.Requests() {
		switch {
		case r.Op == digitaloceantest.OpConfigCreate && r.Performed:
			n++
		case r.Op == digitaloceantest.OpConfigDelete && r.Performed && r.Status/100 == 2:
			n--
		}
	}
	return n
}

// spoiled counts the requests that the script of faults touched, and the deletes that
// were refused.
func (a *managedAgents) spoiled() (n int) {
	for _, r := range a.Requests() {
		if r.Fault != "" || r.Op == digitaloceantest.OpDelete && r.Status == http.StatusConflict {
			n++
		}
	}
	return n
}

// TestAnAccountWithoutMoneyAtDigitalOcean lets the balance of a team run out while a
// session runs: it is blocked and told, nothing is lost and nothing deleted, and all
// goes on once somebody has paid.
func TestAnAccountWithoutMoneyAtDigitalOcean(t *testing.T) {
	t.Parallel()
	a := atDigitalOcean(t, "do-no-money", digitaloceantest.Options{})
	l, u := a.l, &user{l: a.l, wrote: map[string][]string{}}
	l.create()
	u.converse(2)
	l.pass(20 * time.Minute)
	l.await(box.StateSuspended)
	replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h")
	l.await(box.StateRunning)
	u.goOn()
	replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
	a.SetBalance(digitaloceantest.DefaultToken, 0)
	l.pass(20 * time.Minute)
	s := l.through(box.StateSuspended)
	require.False(t, s.ExportCovers, "it was paused with what nobody had exported")
	require.Contains(t, s.Seen.Evidence, "zero_balance")

	// A user comes back: told why it does not wake.
	replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "2h")
	s = l.awaitThat("the wake was refused", func(s box.Status) bool { return s.Failure != nil && s.Failure.Step == box.StepResume })
	require.Equal(t, box.ClassExhausted, s.Failure.Class)
	require.Contains(t, s.Failure.Message, "balance")
	require.Contains(t, s.Flags, "balance-blocked")
	require.Contains(t, l.do("box", "why", l.ws), "balance-blocked")
	l.listed("balance", true)
	tries := a.Count(digitaloceantest.OpResume)
	l.pass(30 * time.Minute)
	require.LessOrEqual(t, a.Count(digitaloceantest.OpResume)-tries, 8, "it hammers a service that nobody has paid")
	a.SetBalance(digitaloceantest.DefaultToken, 25)
	s, err := l.status()
	require.NoError(t, err)
	l.meet(s.NextAt)
	s = l.through(box.StateRunning)
	require.NotContains(t, s.Flags, "balance-blocked")
	l.listed("balance", false)
	u.goOn()
	replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")

	// A deletion that would need an export which nobody can take is blocked.
	a.SetBalance(digitaloceantest.DefaultToken, 0)
	l.pass(20 * time.Minute)
	l.through(box.StateSuspended)
	loss := replyOf[box.Loss](l, "box", "delete", l.ws)
	require.False(t, loss.Covered)
	l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann")
	s = l.through(box.StateDeleteBlocked)
	require.Contains(t, s.Reason.Text, "balance")
	l.pass(day)
	require.Zero(t, a.Count(digitaloceantest.OpDelete), "it was deleted without its history")
	require.Len(t, a.Audit().Alive, 1)
	s, err = l.status()
	require.NoError(t, err)
	require.Equal(t, box.StateDeleteBlocked, s.State)
	require.Contains(t, s.Flags, "needs-attention")
	require.Contains(t, s.Flags, "balance-blocked")

	a.SetBalance(digitaloceantest.DefaultToken, 25)
	s = l.passUntil(2*day, box.StateBoxArchived, box.StateSuspended)
	t.Logf("after the payment: %s (%s)", s.State, s.Reason.Text)
	if s.State == box.StateSuspended { // what was exported is not what was shown, so it is asked for anew
		loss = replyOf[box.Loss](l, "box", "delete", l.ws)
		require.True(t, loss.Covered)
		l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann")
		l.through(box.StateBoxArchived)
	}
	require.Empty(t, a.Audit().Alive)
	require.Equal(t, 1, a.Count(digitaloceantest.OpDelete))
	u.requireKept()
}
