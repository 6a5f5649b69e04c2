package process

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// afterExit returns the record after its attempt ended with x. jitter, in [0,1), determines the
// time of the next start within its backoff.
func (r record) afterExit(x exit, jitter float64) record {
	e := ending{Attempt: r.Attempt, At: x.At, Message: x.String(), Jitter: jitter}
	if x.Kind == exitNeverRan {
		// Nothing ran, so the facts about the previous attempt stay true.
		if r.End != nil {
			e.Reason, e.Message = r.End.Reason, r.End.Message
		}
		e.Free = true
		r.End = &e
		return r
	}
	if x.Kind == exitNoSpace {
		// This is not the instance's fault, because nothing of it ran.
		e.Reason = runtime.ReasonDiskFull
		r.End, r.Ready = &e, false
		if r.Stop != nil && !r.Stop.Final {
			r.Stop = nil
		}
		return r
	}
	r.Runs++
	if r.servedFor(x.At) >= runtime.StableAfter {
		r.Streak, r.Sick = 0, 0
	}
	switch {
	case x.Kind == exitRebooted:
		e.Reason, e.Free = runtime.ReasonLost, true
	case r.Stop != nil:
		e.Reason = r.Stop.Reason
		e.Message = r.Stop.Message + "; " + x.String()
		e.Free = r.Stop.Reason == runtime.ReasonStopped || r.Stop.Reason == runtime.ReasonReplaced
	case x.Kind == exitBadCommand:
		e.Reason = runtime.ReasonBadCommand
	case x.Kind == exitedByOOM:
		e.Reason = runtime.ReasonOOMKilled
	case x.Kind == exitLost || x.Kind == exitNoShim:
		e.Reason = runtime.ReasonLost
	case x.StopRequested:
		// Another process told the shim to stop: the host is shutting down, or a person sent the
		// signal.
		e.Reason, e.Free = runtime.ReasonStopped, true
	default:
		e.Reason = runtime.ReasonExited
	}
	if !e.Free {
		r.Streak++
		if e.Reason == runtime.ReasonHealthCheckFailed {
			r.Sick++
		}
	}
	r.End = &e
	r.Ready = false
	if r.Stop != nil && !r.Stop.Final {
		r.Stop = nil
	}
	return r
}

// nextAttempt returns the record with its next attempt.
func (r record) nextAttempt(now time.Time) record {
	r.Attempt++
	r.StartedAt = now
	r.Ready, r.ReadyAt, r.UnreadyAt, r.Stop = false, time.Time{}, time.Time{}, nil
	return r
}

func (r record) withReady(ready bool, now time.Time) record {
	r.Ready = ready
	if ready {
		r.ReadyAt = now
		r.End = nil
	} else {
		r.UnreadyAt = now
	}
	return r
}

// isDoomed reports whether a rollout should not wait for the instance.
func (s seen) isDoomed() bool {
	if s.Ready || s.Stop != nil && s.Stop.Final {
		return false
	}
	if s.Blocked != nil && s.Blocked.Reason == runtime.ReasonPortInUse {
		return true
	}
	if s.Stop != nil && s.Stop.Reason == runtime.ReasonStartupTimeout {
		return true
	}
	if s.End == nil {
		return false
	}
	switch s.End.Reason {
	case runtime.ReasonBadCommand, runtime.ReasonStartupTimeout:
		return true
	case runtime.ReasonPortInUse:
		// An allocated port is replaced at the next start.
		return slices.ContainsFunc(s.Ports, func(p port) bool { return p.Fixed })
	}
	_, _, loops := s.judgeEnd()
	return loops
}

// describeInstance returns the instance in the form of Observe.
func (s seen) describeInstance(held *block) runtime.Instance {
	in := runtime.Instance{
		ID: s.ID, Role: s.Role, Group: s.Group, Slot: s.Slot, TemplateHash: s.Template,
		Restarts: s.Runs, GPUs: s.GPUs,
		StartedAt: toldTime(s.StartedAt), Doomed: s.isDoomed(),
		RuntimeName: "instances/" + s.ID,
	}
	if s.hasEnded() {
		in.Restarts = max(s.Runs-1, 0)
	}
	if s.Ready {
		in.ReadyAt = toldTime(s.ReadyAt)
	}
	if p := s.firstPort(); p > 0 {
		in.Address, in.BootstrapPort = fmt.Sprintf("127.0.0.1:%d", p), s.portNamed(runtime.BootstrapPort)
	}
	waits := s.Blocked
	if waits == nil {
		waits = held
	}
	if waits == nil && s.Waits != "" {
		waits = &block{Reason: runtime.ReasonWaitsForRole, Message: s.Waits}
	}
	switch {
	case s.Live && s.Stop != nil:
		in.Status, in.Reason, in.Message = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING, s.Stop.Reason, s.Stop.Message
	case s.Live && s.Ready:
		in.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	case s.Live && !s.ReadyAt.IsZero():
		in.Status, in.Reason = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, runtime.ReasonHealthCheckFailed
		in.Message = s.LastCheck
	case s.Live && in.Doomed && s.End != nil:
		// In a crash loop, the cause of the last end says more than the fact that the instance runs
		// now.
		in.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
		in.Reason, in.Message = s.endReason()
	case s.Live:
		in.Status, in.Reason, in.Message = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, runtime.ReasonNotReady, s.LastCheck
	case s.Starting:
		in.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_CREATING
		if s.End != nil && !s.End.Free {
			in.Reason, in.Message = s.endReason()
		}
	case s.Stop != nil && s.Stop.Final:
		in.Status, in.Reason, in.Message = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING, s.Stop.Reason, s.Stop.Message
	case s.Blocked != nil && s.Blocked.Reason == runtime.ReasonPortInUse:
		in.Status, in.Reason, in.Message = windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, s.Blocked.Reason, s.Blocked.Message
	case waits != nil && (s.Attempt == 0 || s.hasEnded()):
		in.Status, in.Reason, in.Message = windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING, waits.Reason, waits.Message
		if s.hasEnded() && s.End.Message != "" {
			in.Message += "; before that: " + s.End.Message
		}
	case s.hasEnded():
		in.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED
		if s.End.Free || s.End.Reason == runtime.ReasonDiskFull {
			in.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING
		}
		in.Reason, in.Message = s.endReason()
	default:
		in.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING
	}
	if !s.Live {
		in.Address = ""
	}
	return in
}

// toldTime returns a time in the form of Observe: the same before and after it was written to disk
// and read again.
func toldTime(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// judgeEnd returns how the instance last ended, and whether it is in a crash loop.
func (s seen) judgeEnd() (reason, message string, loops bool) {
	return runtime.JudgeEnd(s.Streak, s.End.Reason, s.End.Message)
}

func (s seen) endReason() (reason, message string) {
	reason, message, _ = s.judgeEnd()
	return reason, message
}

// successorOf returns the record of an instance that takes the place of another one. was is the last
// record of that one. An instance that replaces another one for its lost health inherits its number
// of ends. So it waits as long before it starts, and is in the same crash loop.
func (r record) successorOf(was record) record {
	r.Ports = was.Ports
	if was.Template == r.Template && was.Sick >= replaceAfter && was.hasEnded() {
		end := *was.End
		end.Attempt = r.Attempt
		r.Streak, r.End = was.Streak, &end
	}
	return r
}

// firstPort returns the number of the first port, or 0 while there is none.
func (r record) firstPort() int {
	if len(r.Ports) == 0 {
		return 0
	}
	return r.Ports[0].Port
}

// checkedPort returns the number of the port of the health check.
func (r record) checkedPort() int { return cmp.Or(r.portNamed(r.Health.Port), r.firstPort()) }

// portNamed returns the number of the port with that name, or 0 if there is none.
func (r record) portNamed(name string) int {
	for _, p := range r.Ports {
		if p.Name == name {
			return p.Port
		}
	}
	return 0
}
