package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/workload"
)

// startTimeout limits the calls to the API server for one start.
const startTimeout = 30 * time.Second

// defaultModelPort is the port of a model server without other settings.
const defaultModelPort = 8000

func (l *loop) carryOut(p *pod, action lifecycle.Action) {
	switch a := action.(type) {
	case lifecycle.Start:
		l.startRun(p, a)
	case lifecycle.Terminate:
		if r := p.runOf(a.Ref); r != nil {
			r.Terminate()
		}
	case lifecycle.Kill:
		if r := p.runOf(a.Ref); r != nil {
			_, _ = r.Log.Write([]byte(a.LastWords))
			r.Kill()
		}
	case lifecycle.Check:
		l.startCheck(p, a)
	case lifecycle.Hook:
		l.startHook(p, a)
	case lifecycle.Record:
		l.recorders.recordEvent(p.object, a)
	case lifecycle.Preempt:
		p.preempt = true
	}
}

// runOf returns the run of r, or nil if r is not the container's newest run.
func (p *pod) runOf(r lifecycle.Ref) *workload.Run {
	if have := p.runs[r.Container]; have != nil && have.ref == r {
		return have.run
	}
	return nil
}

// launch is the input of a start, copied from the loop's pod.
type launch struct {
	object    *corev1.Pod
	container *corev1.Container
	addr      address
	timing    workload.Timing
	log       *workload.Log
	setup     bool
}

func (l *loop) startRun(p *pod, a lifecycle.Start) {
	container, setup := containerOf(p.object, a.Container)
	pr := &podRun{ref: a.Ref}
	p.runs[a.Container] = pr
	logs := p.logs[a.Container]
	if logs == nil {
		logs = &podLogs{}
		p.logs[a.Container] = logs
	}
	logs.previous, logs.current = logs.current, &workload.Log{}
	job := launch{
		object: p.object, container: container, setup: setup, log: logs.current,
		addr: address{pod: p.addr, node: l.cfg.NodeAddress}, timing: workload.Timing{Idle: a.Idle, Delay: a.Delay},
	}
	exit := func(e lifecycle.Exit) {
		l.post(func(now time.Time) { l.handleExit(p, pr, e, now) })
	}
	l.starts.addJob(func() func() {
		return func() {
			ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
			defer cancel()
			run, err := l.launchProgram(ctx, job, exit)
			l.post(func(now time.Time) {
				l.starts.jobDone()
				l.handleStart(p, pr, run, err, now)
			})
		}
	})
}

// launchProgram starts a container's program.
func (l *loop) launchProgram(ctx context.Context, j launch, exit func(lifecycle.Exit)) (*workload.Run, error) {
	env, err := l.values.containerEnv(ctx, j.object, j.container, j.addr)
	if err != nil {
		return nil, &lifecycle.StartError{Reason: lifecycle.ReasonConfigError, Err: err}
	}
	var run *workload.Run
	known := make(chan struct{})
	defer close(known)
	ended := func(e lifecycle.Exit) {
		<-known
		l.live.remove(run)
		exit(e)
	}
	if _, host := hostImage(j.container.Image); host {
		run, err = l.spawner.StartHost(l.hostProcess(j, env), ended)
	} else {
		run, err = workload.StartModel(modelServer(j, env), ended)
	}
	if err != nil {
		return nil, err
	}
	if !l.live.add(run) {
		run.Kill()
		return nil, errors.New("the node agent is stopping")
	}
	return run, nil
}

func (l *loop) hostProcess(j launch, env map[string]string) workload.Host {
	expand := newExpander(env)
	h := workload.Host{Log: j.log, Timing: j.timing, Env: hostEnv(j.object, env), Dir: cmp.Or(j.container.WorkingDir, os.TempDir())}
	if entrypoint, _ := hostImage(j.container.Image); entrypoint != "" && len(j.container.Command) == 0 {
		h.Argv = []string{entrypoint}
	}
	for _, word := range slices.Concat(j.container.Command, j.container.Args) {
		h.Argv = append(h.Argv, expand(word))
	}
	return h
}

func modelServer(j launch, env map[string]string) workload.Model {
	expand := newExpander(env)
	m := workload.Model{Log: j.log, Timing: j.timing, Env: env, Address: j.addr.pod, Done: j.setup}
	if len(j.container.Command) == 0 {
		m.Image = j.container.Image
	}
	for _, word := range slices.Concat(j.container.Command, j.container.Args) {
		m.Args = append(m.Args, expand(word))
	}
	for _, port := range j.container.Ports {
		if port.Protocol != corev1.ProtocolUDP && port.Protocol != corev1.ProtocolSCTP {
			m.Ports = append(m.Ports, int(port.ContainerPort))
		}
	}
	// A pod's only container has the default port if it names none.
	if len(m.Ports) == 0 && len(j.object.Spec.Containers)+len(j.object.Spec.InitContainers) == 1 {
		m.Ports = []int{defaultModelPort}
	}
	return m
}

// hostEnv returns the environment of a host process: the container's variables, and the variables that an
// image would set.
func hostEnv(object *corev1.Pod, env map[string]string) []string {
	all := map[string]string{"HOSTNAME": object.Name}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			all[name] = value
		}
	}
	maps.Copy(all, env)
	list := make([]string, 0, len(all))
	for name, value := range all {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}

// hostImage reports whether an image is of HostRepository, and returns its entrypoint, if any.
func hostImage(image string) (entrypoint string, ok bool) {
	name, _, _ := strings.Cut(image, "@")
	if tag := strings.LastIndexByte(name, ':'); tag > strings.LastIndexByte(name, '/') {
		name = name[:tag]
	}
	entrypoint, ok = strings.CutPrefix(name, HostRepository)
	if !ok || entrypoint != "" && entrypoint[0] != '/' {
		return "", false
	}
	return entrypoint, true
}

// containerOf returns a container's spec, and whether the container must end before others start.
func containerOf(object *corev1.Pod, name string) (c *corev1.Container, setup bool) {
	for i := range object.Spec.InitContainers {
		if c := &object.Spec.InitContainers[i]; c.Name == name {
			return c, c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
		}
	}
	for i := range object.Spec.Containers {
		if c := &object.Spec.Containers[i]; c.Name == name {
			return c, false
		}
	}
	return nil, false
}

// handleStart handles the result of a start, which may come after its run's end.
func (l *loop) handleStart(p *pod, pr *podRun, run *workload.Run, err error, now time.Time) {
	pr.run = run
	if err != nil || pr.ended != nil {
		delete(p.runs, pr.ref.Container)
	} else if p.gone {
		run.Kill()
	} else if p.lost {
		run.Freeze(true)
	}
	l.forgetPod(p)
	l.feedMachine(p, now, func(now time.Time) {
		p.machine.Started(now, pr.ref, err)
		if pr.ended != nil {
			p.machine.Exited(now, pr.ref, *pr.ended)
		}
	})
}

func (l *loop) handleExit(p *pod, pr *podRun, e lifecycle.Exit, now time.Time) {
	if pr.run == nil {
		pr.ended = &e
		return
	}
	if p.runs[pr.ref.Container] == pr {
		delete(p.runs, pr.ref.Container)
	}
	l.forgetPod(p)
	l.feedMachine(p, now, func(now time.Time) { p.machine.Exited(now, pr.ref, e) })
}

// endAll terminates every run, and after patience kills the runs that remain. It returns when no run is left,
// at the latest after twice patience.
func (l *loop) endAll(patience time.Duration) {
	l.live.forEach(true, (*workload.Run).Terminate)
	if l.live.waitEmpty(patience) {
		return
	}
	l.live.forEach(true, (*workload.Run).Kill)
	if !l.live.waitEmpty(patience) {
		l.log.Warn("some programs did not end in time")
	}
}

func (r *liveRuns) add(run *workload.Run) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return false
	}
	if r.runs == nil {
		r.runs = map[*workload.Run]struct{}{}
	}
	r.runs[run] = struct{}{}
	return true
}

func (r *liveRuns) remove(run *workload.Run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, run)
	if len(r.runs) == 0 && r.empty != nil {
		close(r.empty)
		r.empty = nil
	}
}

func (r *liveRuns) forEach(closing bool, f func(*workload.Run)) {
	r.mu.Lock()
	r.closing = r.closing || closing
	runs := slices.Collect(maps.Keys(r.runs))
	r.mu.Unlock()
	for _, run := range runs {
		f(run)
	}
}

func (r *liveRuns) waitEmpty(patience time.Duration) bool {
	r.mu.Lock()
	if len(r.runs) == 0 {
		r.mu.Unlock()
		return true
	}
	if r.empty == nil {
		r.empty = make(chan struct{})
	}
	empty := r.empty
	r.mu.Unlock()
	select {
	case <-empty:
		return true
	case <-time.After(patience):
		return false
	}
}
