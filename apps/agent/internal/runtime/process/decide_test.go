package process

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var testHealth = health{Healthy: 2, Unhealthy: 3, Budget: time.Minute}

// testDelay has equal limits, so that delays are exact: 1 s each.
var testDelay = backoff.Policy{Min: time.Second, Max: time.Second}

func three(template string) wanted {
	return wanted{Replicas: 3, Roles: only(template), Delay: testDelay}
}

func only(template string) []wantedRole {
	return []wantedRole{{Name: "main", Instances: 1, Template: template, Entry: true}}
}

// pair returns two roles, of which the first starts after the second.
func pair(template string, workers int) []wantedRole {
	return []wantedRole{
		{Name: "main", Instances: 1, Template: template, Entry: true, StartsAfter: []string{"worker"}},
		{Name: "worker", Instances: workers, Template: template},
	}
}

func worker(s *seen) { s.ID, s.Role = "w"+s.ID[1:], "worker" }

func two(template string) wanted {
	w := three(template)
	w.Unavailable = 2
	return w
}

// ins returns an instance of group g that runs and is ready, unless change says otherwise.
func ins(g int, change ...func(*seen)) seen {
	s := seen{record: record{
		ID: fmt.Sprint("i", g), Role: "main", Group: g, Template: "a", Attempt: 1, Health: testHealth,
		Grace: 10 * time.Second, StartedAt: t0, Ready: true, ReadyAt: t0,
	}, Live: true}
	for _, c := range change {
		c(&s)
	}
	return s
}

func of(template string) func(*seen) { return func(s *seen) { s.Template = template } }
func notReady(s *seen)               { s.Ready, s.ReadyAt = false, time.Time{} }
func sick(fails int) func(*seen) {
	return func(s *seen) { s.Fails, s.LastCheck = fails, "503" }
}
func unready(s *seen) { s.Ready, s.UnreadyAt = false, t0 }
func busy(s *seen)    { s.Busy = true }
func created(s *seen) { notReady(s); s.Live, s.Attempt = false, 0 }
func stopped(s *seen) { s.Live, s.Ready = false, false }
func passes(s *seen)  { s.Passes = 2 }
func unfitted(s *seen) {
	created(s)
	s.Blocked = &block{Reason: runtime.ReasonUnschedulable, Until: t0.Add(time.Hour)}
}

func unwritten(s *seen) {
	unfitted(s)
	s.Blocked.Reason, s.Blocked.OtherCause = runtime.ReasonDiskFull, true
}

func streak(n int) func(*seen) { return func(s *seen) { s.Streak = n } }

func stopping(final bool, reason string) func(*seen) {
	return func(s *seen) { s.Stop = &order{Reason: reason, At: t0, Final: final} }
}

func ended(streak int) func(*seen) {
	return func(s *seen) {
		stopped(s)
		s.End = &ending{Attempt: s.Attempt, At: t0, Reason: runtime.ReasonExited}
		s.Streak = streak
	}
}

func show(p plan) string {
	var out []string
	for _, a := range p.Actions {
		s := string(a.Kind)
		if a.Kind == doCreate {
			s += fmt.Sprintf(" g%d", a.Slot.Group)
		} else {
			s += " " + a.ID
		}
		if a.Reason != "" {
			s += " " + a.Reason
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name string
		want wanted
		have []seen
		at   time.Duration
		do   string
		next time.Duration // 0: none
	}{
		{name: "no instances: all slots are filled", want: three("a"), do: "create g0, create g1, create g2"},
		{name: "as wanted: nothing", want: three("a"), have: []seen{ins(0), ins(1), ins(2)}},
		{name: "a new instance starts", want: three("a"), have: []seen{ins(0), ins(1), ins(2, created)}, do: "start i2"},
		{name: "an instance with a running operation is left alone", want: three("a"), have: []seen{ins(0), ins(1), ins(2, created, busy)}},

		{name: "the lowest free group is filled", want: three("a"), have: []seen{ins(0), ins(2)}, do: "create g1"},
		{name: "fewer: the highest group goes", want: wanted{Replicas: 2, Roles: only("a")}, have: []seen{ins(0), ins(1), ins(2)}, do: "retire i2 Stopped"},
		{name: "fewer: an instance that is not ready goes first", want: wanted{Replicas: 2, Roles: only("a")}, have: []seen{ins(0), ins(1, notReady), ins(2)}, do: "retire i1 Stopped"},
		{name: "fewer: an instance that is leaving already does not count", want: wanted{Replicas: 2, Roles: only("a")}, have: []seen{ins(0, notReady), ins(1, stopping(true, runtime.ReasonStopped)), ins(2)}, next: 15 * time.Second},
		{name: "gone: all go at once", want: wanted{Gone: true}, have: []seen{ins(0), ins(1, notReady), ins(2, stopped)}, do: "retire i0 Stopped, retire i1 Stopped, forget i2 Stopped"},
		{name: "wanted again while it leaves: it leaves first", want: three("a"), have: []seen{ins(0), ins(1), ins(2, stopping(true, runtime.ReasonStopped))}, next: 15 * time.Second},

		{name: "new template: one ready instance goes", want: three("b"), have: []seen{ins(0), ins(1), ins(2)}, do: "retire i0 Replaced"},
		{name: "new template: the next waits until the previous one is ready", want: three("b"), have: []seen{ins(0, of("b"), notReady), ins(1), ins(2)}, next: time.Minute},
		{name: "new template: then the next instance goes", want: three("b"), have: []seen{ins(0, of("b")), ins(1), ins(2)}, do: "retire i1 Replaced"},
		{name: "new template: an empty slot is filled first", want: three("b"), have: []seen{ins(1), ins(2)}, do: "create g0"},
		{name: "new template: instances that are not ready go at once", want: three("b"), have: []seen{ins(0, notReady), ins(1, ended(1)), ins(2)}, do: "retire i0 Replaced, forget i1 Replaced"},
		{name: "new template: a doomed new instance stops the replacement", want: three("b"), have: []seen{ins(0, of("b"), ended(5)), ins(1), ins(2)}, at: time.Second, do: "start i0"},
		{name: "new template: an instance that becomes unready counts as unready", want: three("b"), have: []seen{ins(0, sick(3)), ins(1), ins(2)}, do: "unready i0"},
		{name: "new template: an instance whose record cannot be written delays the others", want: three("b"), have: []seen{ins(0), ins(1), ins(2, of("b"), unwritten)}, next: time.Hour},
		{name: "new template: an instance that never fitted delays no other", want: three("b"), have: []seen{ins(0), ins(1), ins(2, of("b"), unfitted)}, do: "retire i0 Replaced", next: time.Hour},

		{name: "two at a time: two go", want: two("b"), have: []seen{ins(0), ins(1), ins(2)}, do: "retire i0 Replaced, retire i1 Replaced"},
		{name: "two at a time: an instance that is not ready counts", want: two("b"), have: []seen{ins(0, of("b"), notReady), ins(1), ins(2)}, do: "retire i1 Replaced", next: time.Minute},
		{name: "two at a time: no third one goes", want: two("b"), have: []seen{ins(0, of("b"), notReady), ins(1, of("b"), notReady), ins(2)}, next: time.Minute},
		{
			name: "several roles: a whole replica goes", want: wanted{Replicas: 2, Roles: pair("b", 1)},
			have: []seen{ins(0), ins(0, worker), ins(1), ins(1, worker)}, do: "retire i0 Replaced, retire w0 Replaced",
		},
		{
			name: "several roles: an instance with the template of its role stays", want: func() wanted {
				w := wanted{Replicas: 2, Roles: pair("b", 1)}
				w.Roles[1].Template = "a"
				return w
			}(), have: []seen{ins(0), ins(0, worker), ins(1), ins(1, worker)}, do: "retire i0 Replaced",
		},
		{
			name: "several roles: the first start waits", want: wanted{Replicas: 1, Roles: pair("a", 1)},
			have: []seen{ins(0, created), ins(0, worker, notReady)}, next: time.Minute,
		},
		{
			name: "several roles: the first start after the wait", want: wanted{Replicas: 1, Roles: pair("a", 1)},
			have: []seen{ins(0, created), ins(0, worker)}, do: "start i0",
		},
		{
			name: "several roles: a later start does not wait", want: wanted{Replicas: 1, Roles: pair("a", 1), Delay: testDelay},
			have: []seen{ins(0, ended(1)), ins(0, worker, notReady)}, at: time.Second, do: "start i0", next: time.Minute,
		},
		{
			name: "several roles: fewer takes the group that no gateway sends to", want: wanted{Replicas: 1, Roles: pair("a", 1)},
			have: []seen{ins(0, func(s *seen) { s.Unrouted = true }), ins(0, worker), ins(1), ins(1, worker)}, do: "retire i0 Stopped, retire w0 Stopped",
		},
		{name: "back: only replaced instances go back", want: two("a"), have: []seen{ins(0, of("b")), ins(1, of("b"), notReady), ins(2)}, do: "retire i1 Replaced, retire i0 Replaced"},

		{name: "ready after enough passes", want: three("a"), have: []seen{ins(0, notReady, passes), ins(1), ins(2)}, do: "ready i0"},
		{name: "unready after enough failures", want: three("a"), have: []seen{ins(0, sick(3)), ins(1), ins(2)}, do: "unready i0"},
		{name: "unready, and not restarted yet", want: three("a"), have: []seen{ins(0, unready, sick(5)), ins(1), ins(2)}},
		{name: "restarted after more failures", want: three("a"), have: []seen{ins(0, unready, sick(6)), ins(1), ins(2)}, do: "stop i0 HealthCheckFailed"},
		{name: "replaced after several restarts for lost health", want: three("a"), have: []seen{ins(0, ended(3), func(s *seen) { s.Sick = replaceAfter }), ins(1), ins(2)}, do: "forget i0 Replaced"},
		{name: "within its startup budget", want: three("a"), have: []seen{ins(0, notReady, sick(50)), ins(1), ins(2)}, at: 59 * time.Second, next: time.Minute},
		{name: "over its startup budget", want: three("a"), have: []seen{ins(0, notReady, sick(50)), ins(1), ins(2)}, at: time.Minute, do: "stop i0 StartupTimeout"},
		{name: "the agent kills an instance that outlived its grace period", want: three("a"), have: []seen{ins(0, stopping(false, runtime.ReasonStopped)), ins(1), ins(2)}, at: 15 * time.Second, do: "kill i0", next: 20 * time.Second},

		{name: "an end waits for its backoff", want: three("a"), have: []seen{ins(0, ended(1)), ins(1), ins(2)}, next: time.Second},
		{name: "an end starts again after its backoff", want: three("a"), have: []seen{ins(0, ended(1)), ins(1), ins(2)}, at: time.Second, do: "start i0"},
		{name: "an end that is not the app's fault starts at once", want: three("a"), have: []seen{ins(0, ended(9), func(s *seen) { s.End.Free = true }), ins(1), ins(2)}, do: "start i0"},
		{name: "held: nothing starts, nothing ready is replaced", want: func() wanted { w := three("b"); w.Held = &block{}; return w }(), have: []seen{ins(0, of("b"), ended(1)), ins(1), ins(2)}, at: time.Minute},
		{name: "paused: all stop and stay", want: func() wanted { w := three("b"); w.Paused = true; return w }(), have: []seen{ins(0), ins(1, ended(1))}, do: "stop i0 Stopped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := decideWorkload(c.want, c.have, t0.Add(c.at))
			require.Equal(t, c.do, show(p))
			if c.next == 0 {
				require.True(t, p.Next.IsZero(), "next %s", p.Next)
				return
			}
			require.Equal(t, c.next, p.Next.Sub(t0))
		})
	}
}

func TestBackoff_DoublesToItsLimitWithJitter(t *testing.T) {
	delay := backoff.Policy{Min: time.Second, Max: time.Minute}
	longest := time.Duration(0)
	for streak := 1; streak < 10; streak++ {
		s := ins(0, ended(streak))
		s.End.Jitter = 0.999
		d := s.startAt(delay).Sub(t0)
		require.GreaterOrEqual(t, d, longest)
		longest = d
		s.End.Jitter = 0
		require.Less(t, s.startAt(delay).Sub(t0), d)
	}
	require.InDelta(t, time.Minute, longest, float64(time.Second))
}

func TestDecide_FullDiskIsRetriedSoon(t *testing.T) {
	s := ins(0, ended(9))
	for range 100 {
		s.record = s.afterExit(exit{At: t0, Kind: exitNoSpace}, 0.999)
		after := s.startAt(backoff.Policy{Min: time.Second, Max: time.Minute}).Sub(t0)
		require.GreaterOrEqual(t, after, diskRetry)
		require.Less(t, after, 2*diskRetry)
	}
	require.Equal(t, 9, s.Streak, "a full disk does not count as an end")
}

func TestExit_DecidesReasonAndCounts(t *testing.T) {
	crashed := exit{At: t0.Add(time.Second), Kind: exitedByCode, Code: 3, Tail: []string{"boom"}}
	for _, c := range []struct {
		name   string
		have   seen
		exit   exit
		reason string
		streak int
		free   bool
		doomed bool
		says   []string
	}{
		{"first end", ins(0, notReady), crashed, runtime.ReasonExited, 1, false, false, []string{"exit code 3", "boom"}},
		{"third end in a row", ins(0, notReady, streak(2)), crashed, runtime.ReasonCrashLoop, 3, false, true, []string{"3 times", "exit code 3", "boom"}},
		{"second end in a row, after it was ready", ins(0, streak(1)), crashed, runtime.ReasonExited, 2, false, false, nil},
		{"third end in a row, after it was ready", ins(0, streak(2)), crashed, runtime.ReasonCrashLoop, 3, false, true, []string{"3 times", "exit code 3", "boom"}},
		{"third end in a row, for lost health", ins(0, streak(2), unready, stopping(false, runtime.ReasonHealthCheckFailed)), exit{At: t0, Kind: exitedBySignal, Signal: "SIGTERM", StopRequested: true}, runtime.ReasonHealthCheckFailed, 3, false, true, nil},
		{"a requested end does not count", ins(0, streak(2), stopping(false, runtime.ReasonStopped)), exit{At: t0, Kind: exitedByCode, StopRequested: true}, runtime.ReasonStopped, 2, true, false, nil},
		{"after it served for a long time", ins(0, streak(9), func(s *seen) { s.Sick = 2; s.ReadyAt = t0.Add(-time.Hour) }), crashed, runtime.ReasonExited, 1, false, false, nil},
		{"out of memory", ins(0, notReady), exit{At: t0, Kind: exitedByOOM}, runtime.ReasonOOMKilled, 1, false, false, []string{"memory"}},
		{"bad command", ins(0, notReady), exit{At: t0, Kind: exitBadCommand, Message: "cannot run /x: no such file"}, runtime.ReasonBadCommand, 1, false, true, []string{"/x"}},
		{"not ready in time", ins(0, notReady, stopping(false, runtime.ReasonStartupTimeout)), exit{At: t0, Kind: exitedBySignal, Signal: "SIGTERM", StopRequested: true}, runtime.ReasonStartupTimeout, 1, false, true, nil},
		{"restart", ins(0, stopping(false, runtime.ReasonStopped)), exit{At: t0, Kind: exitedByCode, StopRequested: true}, runtime.ReasonStopped, 0, true, false, nil},
		{"reboot", ins(0), exit{At: t0, Kind: exitRebooted}, runtime.ReasonLost, 0, true, false, []string{"restarted"}},
		{"shim killed", ins(0, notReady), exit{At: t0, Kind: exitLost}, runtime.ReasonLost, 1, false, false, nil},
		{"disk full", ins(0, notReady, streak(2)), exit{At: t0, Kind: exitNoSpace, Message: "no space left"}, runtime.ReasonDiskFull, 2, false, false, []string{"no space left"}},
		{"stopped by another process", ins(0), exit{At: t0, Kind: exitedBySignal, Signal: "SIGTERM", StopRequested: true}, runtime.ReasonStopped, 0, true, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := c.have.afterExit(c.exit, 0.5)
			s := seen{record: r}
			in := s.describeInstance(nil)
			require.Equal(t, c.reason, in.Reason)
			require.Equal(t, c.streak, r.Streak)
			require.Equal(t, c.free, r.End.Free)
			require.Equal(t, c.doomed, in.Doomed)
			require.True(t, r.hasEnded())
			require.False(t, r.Ready)
			for _, w := range c.says {
				require.Contains(t, in.Message, w)
			}
		})
	}
	r := ins(0, streak(9), func(s *seen) { s.Sick, s.ReadyAt = 2, t0.Add(-time.Hour) }).afterExit(crashed, 0)
	require.Zero(t, r.Sick, "after a minute of service, Sick starts at 0 again")
}

func TestCrashLoop(t *testing.T) {
	t.Run("after a run that serves for seconds, earlier ends still count", func(t *testing.T) {
		s, now := ins(0, created), t0
		for n := range runtime.LoopAfter {
			s.record = s.nextAttempt(now).withReady(true, now.Add(time.Second))
			now = now.Add(10 * time.Second)
			s.record = s.afterExit(exit{At: now, Kind: exitedByCode, Code: 1}, 0)
			in := s.describeInstance(nil)
			require.Equal(t, n == runtime.LoopAfter-1, in.Doomed, "end %d", n+1)
			require.Equal(t, in.Doomed, in.Reason == runtime.ReasonCrashLoop)
		}
		s.record = s.nextAttempt(now)
		s.Live = true
		require.True(t, s.describeInstance(nil).Doomed, "doomed while it runs and is not ready yet")
		s.record = s.withReady(true, now)
		require.False(t, s.describeInstance(nil).Doomed, "it serves")
	})
	sickened := ins(0, ended(3), func(s *seen) {
		s.Sick, s.End.Reason, s.End.Message = replaceAfter, runtime.ReasonHealthCheckFailed, "503"
	}).record
	t.Run("an instance that replaces one for its health is in the same crash loop", func(t *testing.T) {
		s := seen{record: record{ID: "i1", Role: "main", Template: "a", Health: testHealth}.successorOf(sickened)}
		in := s.describeInstance(nil)
		require.True(t, in.Doomed)
		require.Equal(t, runtime.ReasonHealthCheckFailed, in.Reason)
		require.Zero(t, in.Restarts)
		w := wanted{Replicas: 1, Roles: only("a"), Delay: backoff.Policy{Min: time.Second, Max: time.Minute}}
		p := decideWorkload(w, []seen{s}, t0)
		require.Empty(t, p.Actions)
		require.Equal(t, s.startAt(w.Delay), p.Next, "it waits as long as the replaced instance would have")
		require.Greater(t, p.Next, t0)
	})
	t.Run("another template starts without earlier ends", func(t *testing.T) {
		r := record{ID: "i1", Role: "main", Template: "b"}.successorOf(sickened)
		require.Zero(t, r.Streak)
		require.Nil(t, r.End)
	})
}

func TestAttempt_ThatNeverRanKeepsEarlierFacts(t *testing.T) {
	r := ins(0, ended(2), func(s *seen) { s.Runs = 2 }).nextAttempt(t0)
	require.Equal(t, 2, r.Attempt)
	r = r.afterExit(exit{At: t0, Kind: exitNeverRan}, 0)
	require.Equal(t, runtime.ReasonExited, r.End.Reason)
	require.Equal(t, 2, r.Streak)
	require.Equal(t, 2, r.Runs)
	require.True(t, r.End.Free)
}

// simulation plays the host. It carries out the actions of decideWorkload, with random faults in between.
type simulation struct {
	w   wanted
	all []seen
	ids int
	now time.Time
	// before has the last instance of each slot.
	before map[slotKey]record
}

func (w *simulation) at(id string) int {
	return slices.IndexFunc(w.all, func(s seen) bool { return s.ID == id })
}

func (w *simulation) run(t *rapid.T) {
	for range 50 {
		p := decideWorkload(w.w, slices.Clone(w.all), w.now)
		if len(p.Actions) == 0 {
			return
		}
		for _, a := range p.Actions {
			w.act(t, a)
		}
	}
	t.Fatalf("decide keeps returning actions: %s", show(decideWorkload(w.w, slices.Clone(w.all), w.now)))
}

func (w *simulation) act(t *rapid.T, a action) {
	i := w.at(a.ID)
	switch a.Kind {
	case doCreate:
		for _, s := range w.all {
			if s.key() == a.Slot {
				t.Fatalf("%v has two instances", a.Slot)
			}
		}
		w.ids++
		r := record{ID: fmt.Sprint("i", w.ids), Role: a.Slot.Role, Group: a.Slot.Group, Slot: a.Slot.Slot, Template: w.w.templateOf(a.Slot.Role), Health: testHealth, Grace: time.Second}
		w.all = append(w.all, seen{record: r.successorOf(w.before[a.Slot])})
	case doStart:
		if w.all[i].Live {
			t.Fatalf("%s is started, but runs already", a.ID)
		}
		w.all[i].record = w.all[i].nextAttempt(w.now)
		w.all[i].Live, w.all[i].Passes, w.all[i].Fails = true, 0, 0
	case doStop, doRetire:
		if !w.all[i].Live {
			t.Fatalf("%s is stopped, but does not run", a.ID)
		}
		o := &order{Reason: a.Reason, At: w.now, Final: a.Kind == doRetire}
		if w.all[i].Ready && w.all[i].Stop == nil {
			o.Await, w.all[i].Released = w.now.Add(20*time.Second), rapid.Bool().Draw(t, "released")
		}
		w.all[i].Stop = o
	case doOrder:
		if s := w.all[i]; !s.Released && w.now.Before(s.Stop.Await) {
			t.Fatalf("%s gets the order to stop while a gateway sends to it", a.ID)
		}
		w.all[i].Stop.At, w.all[i].Stop.Await = w.now, time.Time{}
	case doForget:
		if w.all[i].Live {
			t.Fatalf("%s is forgotten, but still runs", a.ID)
		}
		w.before[w.all[i].key()] = w.all[i].record
		w.all = slices.Delete(w.all, i, i+1)
	case doReady, doUnready:
		w.all[i].record = w.all[i].withReady(a.Kind == doReady, w.now)
	case doKill:
		w.end(i, exit{At: w.now, Kind: exitedBySignal})
	}
}

func (w *simulation) end(i int, x exit) {
	w.all[i].record = w.all[i].afterExit(x, 0.5)
	w.all[i].Live = false
}

func (w *simulation) ready() int {
	n := 0
	for _, s := range w.all {
		if s.Ready && s.Stop == nil {
			n++
		}
	}
	return n
}

// away returns the wanted replicas that are not in service.
func (w *simulation) away() map[int]bool {
	d := groups.Decide(w.w.wantedGroups(), observedGroups(w.w, w.all))
	deleted, serving, out := setOf(d.Delete), map[int]int{}, map[int]bool{}
	for _, c := range d.Create {
		out[c.Group] = true
	}
	for _, s := range w.all {
		if deleted[s.ID] {
			continue
		}
		serving[s.Group] += 0
		if s.isServing() {
			serving[s.Group]++
		}
	}
	for g, n := range serving {
		if n < 3 {
			out[g] = true
		}
	}
	return out
}

func TestDecide_KeepsItsInvariantsAndConverges(t *testing.T) {
	three := only("a")
	three[0].Instances = 3
	t.Run("one role", func(t *testing.T) { checkDecide(t, three) })
	t.Run("two roles", func(t *testing.T) { checkDecide(t, pair("a", 2)) })
}

// checkDecide runs random histories of a deployment with three instances in each replica.
func checkDecide(t *testing.T, roles []wantedRole) {
	t.Helper()
	whole := len(roles) > 1
	rapid.Check(t, func(t *rapid.T) {
		w := &simulation{now: t0, before: map[slotKey]record{}, w: wanted{Replicas: 2, Roles: slices.Clone(roles), Delay: testDelay}}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				for _, s := range w.all {
					if in := s.describeInstance(nil); in.Reason == runtime.ReasonCrashLoop && !in.Doomed {
						t.Fatalf("%s is in a crash loop, but not doomed", s.ID)
					}
				}
			},
			"scale": func(t *rapid.T) { w.w.Replicas = rapid.IntRange(0, 4).Draw(t, "replicas") },
			"template": func(t *rapid.T) {
				role := rapid.IntRange(0, len(w.w.Roles)-1).Draw(t, "role")
				w.w.Roles[role].Template = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "template")
			},
			"unavailable": func(t *rapid.T) { w.w.Unavailable = rapid.IntRange(0, 3).Draw(t, "unavailable") },
			"serve": func(*rapid.T) {
				// All running instances are healthy.
				for i := range w.all {
					if w.all[i].Live {
						w.all[i].Passes, w.all[i].Fails = 2, 0
					}
				}
				w.run(t)
			},
			"stop": func(*rapid.T) {
				for i := range w.all {
					if w.all[i].Live && w.all[i].Stop != nil {
						w.end(i, exit{At: w.now, Kind: exitedByCode, StopRequested: true})
					}
				}
			},
			"gone": func(t *rapid.T) { w.w.Gone = rapid.Bool().Draw(t, "gone") },
			"end": func(t *rapid.T) {
				if len(w.all) > 0 {
					if i := rapid.IntRange(0, len(w.all)-1).Draw(t, "which"); w.all[i].Live {
						w.end(i, exit{At: w.now, Kind: exitedByCode, Code: 1})
					}
				}
			},
			"check": func(t *rapid.T) {
				if len(w.all) > 0 {
					i := rapid.IntRange(0, len(w.all)-1).Draw(t, "which")
					if rapid.Bool().Draw(t, "pass") {
						w.all[i].Passes, w.all[i].Fails = w.all[i].Passes+1, 0
					} else {
						w.all[i].Passes, w.all[i].Fails = 0, w.all[i].Fails+1
					}
				}
			},
			"wait": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			},
			"decide": func(t *rapid.T) {
				p := decideWorkload(w.w, slices.Clone(w.all), w.now)
				lost := map[int]bool{}
				for _, a := range p.Actions {
					if a.Kind == doRetire && a.Reason == runtime.ReasonReplaced && w.all[w.at(a.ID)].Ready {
						if lost[a.Slot.Group] && !whole {
							t.Fatalf("a template change takes two ready instances of replica %d at once", a.Slot.Group)
						}
						lost[a.Slot.Group] = true
					}
				}
				away := w.away()
				for g := range lost {
					if !away[g] {
						continue
					}
					if !whole {
						t.Fatalf("a template change takes a ready instance of replica %d, which is out of service", g)
					}
					delete(lost, g)
				}
				if len(lost) > 0 && len(away)+len(lost) > max(w.w.Unavailable, 1) {
					t.Fatalf("a template change takes %d replicas while %d are out of service, and %d may be", len(lost), len(away), w.w.Unavailable)
				}
				for _, a := range p.Actions {
					w.act(t, a)
				}
			},
		})
		// From here on, there are no faults: running instances pass their checks, and stopping
		// instances end.
		for range 200 {
			w.run(t)
			w.now = w.now.Add(2 * time.Second)
			for i := range w.all {
				switch s := w.all[i]; {
				case s.Live && s.Stop != nil:
					w.end(i, exit{At: w.now, Kind: exitedByCode, StopRequested: true})
				case s.Live:
					w.all[i].Passes, w.all[i].Fails = 2, 0
				}
			}
		}
		size := 3 * w.w.Replicas
		if w.w.Gone {
			size = 0
		}
		if len(w.all) != size || w.ready() != size {
			t.Fatalf("want %d ready, have %d of %d", size, w.ready(), len(w.all))
		}
		for _, s := range w.all {
			if s.Template != w.w.templateOf(s.Role) {
				t.Fatalf("%s still has template %s", s.ID, s.Template)
			}
		}
	})
}

func TestStatusNames_AreComplete(t *testing.T) {
	for n := range windlassv1.InstanceStatus_name {
		if st := windlassv1.InstanceStatus(n); st != windlassv1.InstanceStatus_INSTANCE_STATUS_UNSPECIFIED {
			require.NotEmpty(t, statusNames[st], st)
		}
	}
}
