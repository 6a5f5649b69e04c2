package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// defaultGrace is the time from SIGTERM to SIGKILL.
	defaultGrace = 30 * time.Second
	// helloPatience is how long a shim may take to say hello. It is long because the host may be
	// busy with the start of other processes.
	helloPatience = 30 * time.Second
	// forgetPatience is how long a shim that has ended may still hold its lock.
	forgetPatience = 5 * time.Second
)

func graceOf(s *windlassv1.DeploymentSpec) time.Duration {
	if g := s.GetTerminationGrace(); g != nil {
		return g.AsDuration()
	}
	return defaultGrace
}

// drainOf returns the drain delay. By default, it is 0, because a host takes an instance out of its
// routes before it tells the instance to stop.
func drainOf(s *windlassv1.DeploymentSpec) time.Duration { return s.GetDrainDelay().AsDuration() }

// start claims the resources that the instance needs, writes that the instance is being started,
// and starts it in a goroutine.
func (w *workload) start(ctx context.Context, in *instance, d *deployment, now time.Time) {
	ro, ok := findRole(d.spec.GetSpec(), in.rec.Role)
	if !ok {
		return
	}
	rec := in.rec
	// The port may be the reason why the instance was never ready, so it gets another one.
	fresh := rec.hasEnded() && !rec.End.Free && rec.End.Reason != runtime.ReasonDiskFull && rec.ReadyAt.IsZero()
	n := need{ports: portsOf(d.spec.GetSpec()), gpus: gpusOf(ro.Resources.GetGpu()), memoryMiB: int(ro.Resources.GetMemoryMib())}
	if in.blocked = w.rt.ledger.claimResources(&rec, n, fresh, now); in.blocked != nil {
		return
	}
	// The ledger has given these resources to the instance, so the next attempt must start with
	// them.
	in.rec.Ports, in.rec.GPUs, in.rec.MemoryMiB = rec.Ports, rec.GPUs, rec.MemoryMiB
	if in.blocked = w.rt.claimUser(&rec, d, now); in.blocked != nil {
		return
	}
	in.rec.UID, in.rec.GID = rec.UID, rec.GID
	if err := w.rt.reservePorts(rec); err != nil {
		in.blocked = &block{Reason: runtime.ReasonUnschedulable, Message: err.Error(), Until: now.Add(blockedRetry)}
		return
	}
	rec = rec.nextAttempt(now)
	rec.Health = healthOf(d.spec.GetSpec().GetHealthCheck())
	rec.Grace, rec.Drain = graceOf(d.spec.GetSpec()), drainOf(d.spec.GetSpec())
	in.rec = rec
	// The directory is missing if the disk was full when the instance was created.
	err := os.MkdirAll(w.rt.instanceDir(rec.ID), 0o700)
	if err == nil {
		err = w.saveRecord(in)
	}
	if err != nil {
		in.rec.Attempt--
		in.blocked = &block{Reason: runtime.ReasonUnschedulable, Message: "the record of the instance cannot be written: " + err.Error(), Until: now.Add(blockedRetry), OtherCause: true}
		if diskFull(err) {
			in.blocked.Reason = runtime.ReasonDiskFull
		}
		return
	}
	// The peers file must exist before the process.
	w.tellPeers()
	l := w.rt.launchOf(rec, ro, d)
	// The directory is made later, so a read after this one may not find it. If this read fails, a later one is made.
	if l.Slot != "" && w.findSlots() == nil {
		w.slots[filepath.Base(l.Slot)] = true
	}
	in.busy = starting
	w.rt.metrics.starts.Inc()
	w.rt.wg.Go(func() {
		var f facts
		var err error
		select {
		case w.rt.starts <- struct{}{}:
			f, err = w.rt.spawnShim(ctx, l, ro.Resources)
			<-w.rt.starts
		case <-ctx.Done():
			// The start was written but not made. The next agent finds that the attempt never ran.
			return
		}
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		in.busy = idle
		if err != nil {
			// The shim did not answer. Its lock shows whether it runs.
			w.rt.log.Warn("starting an instance failed", "instance", rec.ID, "err", err)
			w.settleAs(ctx, in, failedStart(err))
			return
		}
		w.followAttempt(ctx, in, f)
	})
}

func findRole(s *windlassv1.DeploymentSpec, name string) (runtime.Role, bool) {
	for _, r := range runtime.Roles(s) {
		if r.Name == name {
			return r, true
		}
	}
	return runtime.Role{}, false
}

func (r *Runtime) launchOf(rec record, ro runtime.Role, d *deployment) launch {
	dir := r.cfg.WorkDir
	if dir == "" {
		dir = filepath.Join(r.instanceDir(rec.ID), workDir)
	}
	u := r.userOf(rec, dir)
	env := environmentFor(d.spec, ro, &rec, r.cfg.Region, d.secrets, hostVariables(u, dir))
	if d.roles != nil {
		peers := r.peersDir(rec.ID)
		env[runtime.PeersEnv] = filepath.Join(peers, peersFile)
		if u != nil {
			u.Keep = append(u.Keep, peers)
		}
	}
	slot := ""
	if ro.Stable {
		slot = filepath.Join(r.slotsOf(rec.Workload), rec.slotKey().dirName())
		env[slotDirEnv] = slot
		if u != nil {
			u.Keep = append(u.Keep, slot)
		}
	}
	models := r.modelDirs(rec, d)
	if models != nil {
		env[modelRepositoryEnv] = models[len(models)-1]
		if u != nil {
			u.Keep = append(u.Keep, models[0])
		}
	}
	argv := slices.Clone(r.commandOf(ro))
	for _, a := range ro.Args {
		argv = append(argv, expandVariables(a, env))
	}
	l := launch{
		Instance: rec.ID, Attempt: rec.Attempt, Argv: argv, Env: envPairs(env),
		Dir: dir, Slot: slot, Grace: rec.Grace, Output: r.cfg.OutputBytes, User: u, models: models,
	}
	l.Hide = slices.Collect(maps.Values(d.secrets))
	return l
}

// spawnShim runs a shim and returns the facts that the shim sends as its hello.
func (r *Runtime) spawnShim(ctx context.Context, l launch, res *windlassv1.Resources) (facts, error) {
	dir := r.instanceDir(l.Instance)
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return facts{}, fmt.Errorf("make the working directory: %w", err)
	}
	if err := l.makeSlot(); err != nil {
		return facts{}, err
	}
	if err := r.makeOwn(l); err != nil {
		return facts{}, err
	}
	if err := makeModelDirs(l); err != nil {
		return facts{}, err
	}
	if r.cgroups != nil {
		var err error
		if l.Cgroup, err = r.cgroups.create(l.Instance, int(res.GetCpuMillicores()), int(res.GetMemoryMib())); err != nil {
			return facts{}, err
		}
		if u := l.User; u != nil {
			u.Hide, u.Keep = append(slices.Clip(u.Hide), r.cgroups.parent), append(u.Keep, l.Cgroup)
		}
	}
	shimLog, err := os.OpenFile(filepath.Join(dir, shimFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return facts{}, fmt.Errorf("open the shim's log: %w", err)
	}
	defer func() { _ = shimLog.Close() }()
	in, launchW, err := os.Pipe()
	if err != nil {
		return facts{}, err
	}
	defer func() { _ = launchW.Close() }()
	helloR, out, err := os.Pipe()
	if err != nil {
		_ = in.Close()
		return facts{}, err
	}
	defer func() { _ = helloR.Close() }()

	path := r.cfg.Shim[0]
	argv := append(slices.Clone(r.cfg.Shim), l.Instance)
	p, err := os.StartProcess(path, argv, &os.ProcAttr{
		Dir: dir,
		// One thread of Go code is enough for a shim.
		Env:   []string{"PATH=" + variableOfAgent("PATH"), "GOMAXPROCS=1"},
		Files: []*os.File{in, shimLog, shimLog, out},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	_, _ = in.Close(), out.Close()
	if err != nil {
		return facts{}, fmt.Errorf("run the shim %s: %w", path, err)
	}
	pid := p.Pid
	_ = p.Release()

	deadline := time.Now().Add(helloPatience)
	_ = launchW.SetWriteDeadline(deadline)
	_ = helloR.SetReadDeadline(deadline)
	stop := context.AfterFunc(ctx, func() {
		_ = launchW.SetWriteDeadline(time.Unix(1, 0))
		_ = helloR.SetReadDeadline(time.Unix(1, 0))
	})
	defer stop()
	var f facts
	err = json.NewEncoder(launchW).Encode(l)
	if cerr := launchW.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = json.NewDecoder(helloR).Decode(&f)
	}
	if err == nil {
		return f, nil
	}
	said, _ := os.ReadFile(shimLog.Name())
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		// The shim has not said hello, and must not do so later.
		if id, ierr := identifyProcess(pid); ierr == nil {
			_ = id.sendSignal(syscall.SIGKILL)
		}
		err = fmt.Errorf("the shim did not answer within %s", helloPatience)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) {
		err = errors.New("the shim ended at once")
	}
	reapShim(pid)
	if s := bytes.TrimSpace(said); len(s) > 0 {
		err = fmt.Errorf("%w: %s", err, lastLines(s, tailLines, tailBytes))
	}
	return facts{}, err
}

// reapShim reaps a shim that has ended, if this process started it.
func reapShim(pid int) {
	if pid <= 0 {
		return
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		got, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		if got == pid || err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// followAttempt continues with an attempt according to its facts. The caller holds mu.
func (w *workload) followAttempt(ctx context.Context, in *instance, f facts) {
	if f.Exit != nil {
		w.rt.wg.Go(func() { reapShim(f.Shim.PID) })
		w.concludeAttempt(in, *f.Exit)
		w.wakeUp()
		return
	}
	actx, cancel := context.WithCancel(ctx)
	in.live, in.gone, in.shim, in.child, in.unwatch = true, false, f.Shim, f.Child, cancel
	pl := &pulse{}
	in.pulse = pl
	id := in.rec.ID
	w.rt.wg.Go(func() {
		f.Shim.wait(actx)
		if actx.Err() != nil {
			return
		}
		reapShim(f.Shim.PID)
		w.mu.Lock()
		if now := w.instances[id]; now == in && in.shim == f.Shim {
			in.gone = true
		}
		w.mu.Unlock()
		w.wakeUp()
	})
	h, port, ready := in.rec.Health, in.rec.checkedPort(), in.rec.Ready
	w.rt.wg.Go(func() { w.rt.prober.watch(actx, h, port, ready, pl, w.wakeUp) })
	w.wakeUp()
}

// finishAttempt finds out how an attempt ended if its shim is gone. The caller holds mu.
func (w *workload) finishAttempt(ctx context.Context, in *instance) {
	w.settleAs(ctx, in, exit{Kind: exitNoShim, Message: "the shim wrote no facts"})
}

// settleAs is settle with ifNone, the exit to record if no shim ever ran the attempt.
func (w *workload) settleAs(ctx context.Context, in *instance, ifNone exit) {
	in.busy = settling
	id, attempt, secrets := in.rec.ID, in.rec.Attempt, w.secrets
	w.rt.wg.Go(func() {
		f, err := settleAttempt(ctx, w.rt.instanceDir(id), id, attempt, w.rt.boot, ifNone, secrets)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		in.busy, in.gone = idle, false
		if err != nil {
			// The directory cannot be read, or a person or a program removed it.
			w.rt.log.Error("cannot find out how an instance ended", "instance", id, "err", err)
			x := failedStart(err)
			f.Exit = &x
		}
		w.followAttempt(ctx, in, f)
	})
}

// settleAttempt returns the facts of an attempt, either with its exit or with a live shim. If there
// is neither a shim nor an exit, it writes the exit while it holds the lock. So no late shim can
// run the attempt any more.
func settleAttempt(ctx context.Context, dir, id string, attempt int, boot string, ifNone exit, secrets *redact.Values) (facts, error) {
	for {
		lock, err := lockInstance(dir)
		if err == nil {
			f, err := settleLocked(dir, id, attempt, boot, ifNone, secrets)
			_ = lock.Close()
			return f, err
		}
		if !errors.Is(err, errLocked) {
			return facts{}, err
		}
		f, found, err := readJSON[facts](dir, factsFile)
		if err != nil {
			return facts{}, err
		}
		if found && f.Attempt == attempt && f.Exit == nil && f.Child.PID > 0 && f.Shim.isAlive() {
			return f, nil
		}
		select {
		case <-ctx.Done():
			return facts{}, ctx.Err()
		case <-time.After(lockRetry):
		}
	}
}

func settleLocked(dir, id string, attempt int, boot string, ifNone exit, secrets *redact.Values) (facts, error) {
	f, found, err := readJSON[facts](dir, factsFile)
	if err != nil {
		return facts{}, err
	}
	if found && f.Attempt == attempt && f.Exit != nil {
		return f, nil
	}
	x := ifNone
	switch {
	case !found || f.Attempt < attempt:
		f = facts{Attempt: attempt, Boot: boot}
	case f.Boot != boot:
		x = exit{Kind: exitRebooted}
		f.Shim = proc{}
	default:
		x = exit{Kind: exitLost}
	}
	if f.Boot == boot {
		killRemaining(id, f.Shim, f.UID)
	}
	x.At = time.Now()
	// The shim would have blanked the secrets. An agent that does not know them shows no output.
	if x.Kind == exitLost && secrets.Known() {
		if b, err := readOutput(dir, tailLines); err == nil {
			x.Tail = messageLines(string(lastLines([]byte(secrets.Blank(string(b))), tailLines, tailBytes)))
		}
	}
	f.Exit = &x
	return f, writeJSON(dir, factsFile, f, false)
}

// concludeAttempt records the end of an attempt. The caller holds mu.
func (w *workload) concludeAttempt(in *instance, x exit) {
	if in.unwatch != nil {
		in.unwatch()
	}
	in.live, in.gone, in.pulse, in.unwatch = false, false, nil, nil
	in.shim, in.child = proc{}, proc{}
	in.rec = in.rec.afterExit(x, w.rt.cfg.Random())
	_ = w.saveRecord(in)
	if x.Kind != exitNeverRan {
		w.rt.metrics.countEnded(in.rec.End)
		w.rt.log.Info("instance ended", "instance", in.rec.ID, "deployment", in.rec.Deployment, "reason", in.rec.End.Reason, "exit", x.String())
	}
}

// eraseInstance removes all traces of an instance that does not run any more.
func (w *workload) eraseInstance(ctx context.Context, in *instance) {
	in.busy = forgetting
	w.before[slotKey{in.rec.Role, in.rec.Group, in.rec.Slot}] = in.rec
	id := in.rec.ID
	w.rt.wg.Go(func() {
		err := forgetInstance(ctx, w.rt.instanceDir(id))
		if err != nil && ctx.Err() != nil {
			return
		}
		w.rt.cgroups.remove(id)
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil {
			w.rt.log.Error("cannot delete the directory of an instance; will try again", "instance", id, "err", err)
			in.busy = idle
			in.blocked = &block{Reason: in.rec.Stop.reasonText(), Message: err.Error(), Until: time.Now().Add(blockedRetry)}
			time.AfterFunc(blockedRetry, w.wakeUp)
			return
		}
		delete(w.instances, id)
		w.rt.ledger.release(id)
		w.rt.users.release(in.rec)
		w.wakeUp()
		w.rt.pokeBlocked()
	})
}

func (o *order) reasonText() string {
	if o == nil {
		return runtime.ReasonStopped
	}
	return o.Reason
}

// forgetInstance deletes an instance's directory while it holds the lock. The record goes first,
// because no shim runs anything without it.
func forgetInstance(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, forgetPatience)
	defer cancel()
	for {
		lock, err := lockInstance(dir)
		switch {
		case err == nil:
			err := forgetLocked(dir)
			_ = lock.Close()
			return err
		case errors.Is(err, os.ErrNotExist):
			return nil
		case !errors.Is(err, errLocked):
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete %s: %w", filepath.Base(dir), errLocked)
		case <-time.After(lockRetry):
		}
	}
}

func forgetLocked(dir string) error {
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.RemoveAll(dir)
}
