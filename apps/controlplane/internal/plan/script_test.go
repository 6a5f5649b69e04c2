package plan

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Scripts in testdata have events of one app, and the planner's decisions after each event:
//
//	regions us eu                connected regions of the simulation
//	deploy us eu [replicas=2] [own=(us:5)] [min_ready=1] [image=...] [source=rollback] [sized=yes] [alike] [queue=5] [cold] [pool=decode [on=v1] [order=parallel] [full=yes]]
//	                             own: numbers of replicas that are requested for single regions
//	                             sized: even with a policy, every region gets this number
//	                             pool=decode: a pool of 8 prefill and 2 decode servers, in which these roles differ
//	                             on: the version from which they differ; default: the live version
//	                             order: the order in which the roles of the pool move
//	                             full: the old version makes room if there is none
//	                             alike: instances see no difference from the live version
//	                             queue: the routing policy has a queue of that size
//	                             cold: at zero, requests wait and wake the app
//	ready us v1 [replicas=1] [older=2]
//	                             the agent applied the row. replicas is how many are ready. In
//	                             addition, older replicas that the row took over serve
//	doomed us v1 reason=... message=... [n=2] [ready=1] [older=2] [behind=6s]
//	                             n of its instances are doomed. behind is how far the clock of the
//	                             process that stores the report is behind
//	older us                     the region's agent is of a release that replaces nothing in place
//	reject us v1 code=... [retryable]
//	crowded us v1 ready=1 message=...    there is no room for the other replicas
//	ack us                       the region serves the present route
//	obey us                      the agent applies everything
//	settle                       every connected region obeys, until nothing changes
//	unreachable us, connect us, epoch us
//	pending us                   no agent has joined the region yet
//	close us [request], open us  the workspace may no longer use the region, and may use it again.
//	                             request: a request came just before
//	request us                   a request comes, which wakes the app at zero
//	scale us v1 replicas=3, cancel who=... why=..., delete [abandon]
//	resolved image=... digest=... | message=... [final]
//	after 10s                    time passes
//	speak us                     the region sends a report without news
//	policy [strategy=recreate] [surge=1] [unavailable=0] waves=(canary:eu/bake=1m,us/parallel=2/onfailure=pause)
//	       [steps=(10%/5m,2/manual)] [initial=10] [promotion=auto_after_5m] [retain=10m] [capacity=1h]
//	       [analysis=(error-rate/max=0.05/interval=1m/min=10/failures=1/hold=10m,latency-p95/ratio=1.5,smoke/hook=5s)]
//	       [rollback=off|crash+analysis] [failed=2] [unhealthy=50%] [for=30s] [deadlines=(progress=5m,crash=2m)]
//	                             the policy of the next rollouts; none: the default policy. Without
//	                             this line, they have no policy, like apps of earlier releases
//	figures error-rate new=0.01 samples=100 [old=0.02] [oldsamples=90] | problem=... | verdict=fail says=... | none
//	                             the result of measuring the check; without this line there is none
//	catchup                      a retry for regions that failed to catch up
//	pause, resume, retry, skip, promote [full] [refused]
//	                             commands of people about the rollout
//	resize [us] replicas=3       the app is scaled during the rollout
//	restore v1                   a rollback to the retained version
//	freeze NAME [hold] [of=app] [for=1h] [in=1h] [weekly=Thu_01:00-Thu_02:00], lift NAME
//	                             a freeze of the workspace or the app; scripts start at 00:16:40 on Thursday
//	override why=...             an owner lets the held rollout start
//	approve who=... [role=owner] an approval at the gates; prints "refused" if they refuse it
//	pin v1 us [weight=10] [replicas=1], unpin v1
//	                             v1 is pinned in us; prints "refused" if it cannot be pinned
//	break us                     the newest version crashes in the region
//	host us                      the region's agent runs processes
//	trace                        like settle, but time does not pass, and each decision is printed
func TestScript_ReadsAsDocumented(t *testing.T) {
	scripts, err := filepath.Glob("testdata/[0-9]*") // leaves out random histories that failed
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	for _, path := range scripts {
		t.Run(filepath.Base(path), func(t *testing.T) {
			w := newSimulation(t)
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				w.t = t
				run(t, w, d)
				if d.Cmd == "regions" || d.Cmd == "policy" || d.Cmd == "figures" {
					return ""
				}
				if d.Cmd == "approve" {
					return approve(w, d)
				}
				if d.Cmd == "trace" {
					return trace(w, d)
				}
				if d.Cmd == "settle" {
					n := len(w.log)
					w.settle()
					var b strings.Builder
					for _, h := range w.log[n:] {
						b.WriteString(describeHistory(h))
					}
					return b.String() + describe(w.step(), w)
				}
				refusal := w.refusal
				w.refusal = ""
				return refusal + describe(w.step(), w)
			})
		})
	}
}

func describeHistory(h model.History) string {
	s := h.What
	if h.Version != 0 {
		s += " v" + strconv.Itoa(int(h.Version))
	}
	if h.RegionID != "" {
		s += " " + h.RegionID
	}
	return s + "\n"
}

func run(t *testing.T, w *simulation, d *datadriven.TestData) {
	var names []string
	opts := map[string]string{}
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			names = append(names, a.Key)
			opts[a.Key] = "yes"
			continue
		}
		opts[a.Key] = strings.ReplaceAll(strings.Join(a.Vals, ", "), "_", " ")
		if d.Cmd == "policy" {
			opts[a.Key] = strings.Join(a.Vals, ",")
		}
	}
	num := func(key string, def int32) int32 {
		if opts[key] == "" {
			return def
		}
		n, err := strconv.Atoi(opts[key])
		require.NoError(t, err)
		return int32(n)
	}
	switch d.Cmd {
	case "regions":
		*w = *newSimulation(t, names...)
	case "deploy":
		s := spec(num("replicas", 2), names...)
		s.MinReady = num("min_ready", 0)
		s.ProgressDeadline = durationpb.New(time.Duration(deadline) * time.Millisecond)
		s.Image = opts["image"]
		for own := range strings.SplitSeq(opts["own"], ", ") {
			if region, n, ok := strings.Cut(own, ":"); ok {
				size, err := strconv.Atoi(n)
				require.NoError(t, err)
				override.SetReplicas(s, region, region, int32(size))
			}
		}
		s.Regions = slices.DeleteFunc(s.Regions, func(name string) bool { return name == "alike" || name == "cold" })
		if n := num("queue", 0); n > 0 {
			s.Routing = &windlassv1.RoutingPolicy{QueueSize: &n}
		}
		if opts["cold"] != "" {
			s.Routing = &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}
		}
		switch {
		case opts["alike"] != "":
			w.deployAlike(s)
		case opts["pool"] != "":
			if opts["order"] != "" {
				order := windlassv1.PoolUpdate_Order_value["ORDER_"+strings.ToUpper(opts["order"])]
				require.NotZero(t, order, "order %s", opts["order"])
				s.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_Order(order)}
			}
			if opts["full"] != "" {
				s.Update = &windlassv1.PoolUpdate{WhenFull: windlassv1.PoolUpdate_WHEN_FULL_REPLACE_IN_PLACE}
			}
			w.deployPoolOn(s, opts["pool"], cmp.Or(opts["on"], w.app.LiveDeploymentID))
		default:
			w.deploy(s)
		}
		w.deps[len(w.deps)-1].Source = opts["source"]
		if opts["sized"] != "" {
			w.rolloutState.Progress.Replicas = s.GetReplicas()
		}
	case "ready":
		row := w.rows[rowKey{names[1], names[0]}]
		w.apply(names[0], names[1], num("replicas", row.Replicas))
		w.older(names[0], names[1], num("older", 0))
	case "doomed":
		n := num("n", 1)
		w.apply(names[0], names[1], num("ready", 0))
		w.observe(names[0], names[1], func(o *model.Observed) {
			o.Running, o.Fail, o.Doomed, o.Restarts = o.Running-n, n, n, 3*n
			o.Reason, o.ReasonMessage = opts["reason"], opts["message"]
		})
		w.older(names[0], names[1], num("older", 0))
		if opts["behind"] != "" {
			d, err := time.ParseDuration(opts["behind"])
			require.NoError(t, err)
			w.observe(names[0], names[1], func(o *model.Observed) { o.UpdatedAt -= d.Milliseconds() })
		}
	case "older":
		w.setRegion(names[0], func(r *model.Region) { r.AgentFeatures = nil })
	case "host":
		w.setRegion(names[0], func(r *model.Region) { r.AgentRuntime = model.RuntimeProcess })
	case "failing":
		w.apply(names[0], names[1], num("replicas", 0))
		w.observe(names[0], names[1], func(o *model.Observed) {
			o.Running, o.Fail, o.Restarts = o.Running-1, 1, 1
			o.Reason, o.ReasonMessage = opts["reason"], opts["message"]
		})
	case "crowded":
		w.apply(names[0], names[1], num("ready", 0))
		w.observe(names[0], names[1], func(o *model.Observed) {
			o.Pending, o.Running = o.Running, 0
			o.Reason, o.ReasonMessage = "Unschedulable", opts["message"]
		})
	case "reject":
		w.apply(names[0], names[1], 0)
		w.observe(names[0], names[1], func(o *model.Observed) {
			o.Phase, o.Running = int32(agentv1.AppliedState_PHASE_REJECTED), 0
			o.Code, o.Message, o.Retryable = opts["code"], opts["message"], opts["retryable"] != ""
		})
	case "ack":
		for _, r := range names {
			w.ack(r)
			if opts["gateways"] == "away" {
				w.losesGateways(r)
			}
		}
	case "obey":
		for _, r := range names {
			w.obey(r)
		}
	case "settle":
	case "unreachable", "connect", "pending":
		for _, r := range names {
			w.setRegion(r, func(r *model.Region) {
				r.Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE
				switch d.Cmd {
				case "connect":
					r.Status, r.LastReportAt = windlassv1.RegionStatus_REGION_STATUS_CONNECTED, w.now
				case "pending":
					r.Status = windlassv1.RegionStatus_REGION_STATUS_PENDING
				}
			})
		}
	case "request":
		w.request(names[0])
	case "close", "open":
		if opts["request"] != "" {
			w.request(names[0])
		}
		w.closed = map[string]bool{names[0]: d.Cmd == "close"}
	case "epoch":
		w.setRegion(names[0], func(r *model.Region) { r.SessionEpoch++ })
	case "scale":
		k := rowKey{names[1], names[0]}
		row := w.rows[k]
		row.Replicas, row.Generation, row.UpdatedAt = num("replicas", 0), row.Generation+1, w.now
		w.rows[k] = row
	case "cancel":
		for i := range w.rol {
			if w.rol[i].ID == w.app.RolloutID {
				w.rol[i].CancelRequested, w.rol[i].CancelledBy, w.rol[i].CancelWhy = true, opts["who"], opts["why"]
			}
		}
	case "delete":
		if w.app.DeletingSince == 0 {
			w.app.DeletingSince = w.now
		}
		w.app.AbandonUnreachable = opts["abandon"] != ""
	case "resolved":
		w.res = &Resolution{Image: opts["image"], Digested: opts["digest"], Message: opts["message"], Final: opts["final"] != ""}
	case "after":
		dur, err := time.ParseDuration(names[0])
		require.NoError(t, err)
		w.now += dur.Milliseconds()
	case "policy":
		if opts["none"] != "" {
			w.policy(nil)
			return
		}
		w.policy(scriptPolicy(t, opts, d))
	case "pause":
		_, err := Pause(w.rolloutState.Progress, "ada", opts["why"], w.now)
		require.NoError(t, err)
	case "resume":
		_, err := Resume(w.rolloutState.Progress)
		require.NoError(t, err)
	case "retry":
		_, err := Retry(w.rolloutState.Progress, w.guards(), w.now)
		require.NoError(t, err)
	case "catchup":
		require.Positive(t, RetryLagging(w.rolloutState.Progress, w.now))
	case "skip":
		_, err := SkipBake(w.rolloutState.Progress, "ada")
		require.NoError(t, err)
	case "promote":
		_, err := Promote(w.rolloutState.Progress, "ada", opts["full"] != "", w.now)
		if opts["refused"] == "" {
			require.NoError(t, err)
			break
		}
		w.refusal = "refused: " + err.Error() + "\n"
	case "freeze":
		f := model.Freeze{
			WorkspaceID: "ws", Name: names[0], Reason: "quarter's end", OnStart: windlassv1.Freeze_ON_START_REFUSE, From: w.now,
		}
		if opts["hold"] != "" {
			f.OnStart = windlassv1.Freeze_ON_START_HOLD
		}
		if opts["of"] == "app" {
			f.AppID = w.app.ID
		}
		if in, err := time.ParseDuration(opts["in"]); err == nil {
			f.From += in.Milliseconds()
		}
		if last, err := time.ParseDuration(opts["for"]); err == nil {
			f.Until = f.From + last.Milliseconds()
		}
		if from, to, ok := strings.Cut(opts["weekly"], "-"); ok {
			f.Weekly, f.TimeZone = []model.FreezeWindow{{Start: from, End: to}}, "UTC"
		}
		w.freezes = append(w.freezes, f)
	case "lift":
		w.freezes = slices.DeleteFunc(w.freezes, func(f model.Freeze) bool { return f.Name == names[0] })
	case "override":
		for i := range w.rol {
			if w.rol[i].ID == w.app.RolloutID {
				w.rol[i].OverrideBy, w.rol[i].OverrideWhy = "olga", opts["why"]
			}
		}
	case "approve":
	case "figures":
		w.figures(names[0], opts)
	case "restore":
		require.True(t, w.restore(names[0]), "the retained version cannot be live again at once")
	case "resize":
		region := ""
		if len(names) > 0 && names[0] != "replicas" {
			region = names[0]
		}
		Resize(w.rolloutState.Progress, AskedIn(region, num("replicas", 0)))
	case "pin":
		w.refusal = w.pin(names[0], num("weight", 0), num("replicas", 0), names[1:]...)
	case "unpin":
		w.unpin(names[0])
	case "trace", "step":
	case "break", "mend":
		w.broken = map[string]bool{}
		for _, r := range names {
			w.broken[r] = d.Cmd == "break"
		}
	case "speak":
		w.noteReport(names[0])
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
}

// scriptApproval reads a gate in a script's short form: "2" needs two owners, and "1:deployer" one deployer. "!" at the
// end means that the deployer may not approve.
func scriptApproval(t *testing.T, text string) *windlassv1.Approval {
	if text == "" {
		return nil
	}
	text, others := strings.CutSuffix(text, "!")
	count, role, _ := strings.Cut(text, ":")
	n, err := strconv.Atoi(count)
	require.NoError(t, err)
	gate := &windlassv1.Approval{Count: int32(n), Role: windlassv1.Role_ROLE_OWNER, NotDeployer: others}
	if role == "deployer" {
		gate.Role = windlassv1.Role_ROLE_DEPLOYER
	}
	return gate
}

// approve prints the result of a person's approval, and then the same as step.
func approve(w *simulation, d *datadriven.TestData) string {
	var who string
	role := windlassv1.Role_ROLE_OWNER
	for _, a := range d.CmdArgs {
		switch {
		case a.Key == "who":
			who = a.Vals[0]
		case a.Key == "role" && a.Vals[0] == "deployer":
			role = windlassv1.Role_ROLE_DEPLOYER
		}
	}
	by := model.Approval{ByID: "key-" + who, By: who, Role: role, At: w.now}
	where, missing, err := Approve(w.rolloutState.Progress, by, func(id string) string { return id })
	if err != nil {
		return "refused: " + err.Error() + "\n"
	}
	var b strings.Builder
	for _, at := range where {
		b.WriteString("approved: " + at + "\n")
	}
	for _, text := range missing {
		b.WriteString("missing: " + text + "\n")
	}
	return b.String() + describe(w.step(), w)
}

// scriptPolicy reads a policy in a script's short form.
func scriptPolicy(t *testing.T, opts map[string]string, d *datadriven.TestData) *windlassv1.RolloutPolicy {
	policy := &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING, MaxSurge: opts["surge"], MaxUnavailable: opts["unavailable"],
	}
	if s := opts["strategy"]; s != "" {
		policy.Strategy = windlassv1.RolloutPolicy_Strategy(windlassv1.RolloutPolicy_Strategy_value["STRATEGY_"+strings.ToUpper(s)])
	}
	for _, text := range strings.FieldsFunc(opts["steps"], func(r rune) bool { return r == ',' }) {
		amount, pause, _ := strings.Cut(text, "/")
		pause, approval, _ := strings.Cut(pause, "/approval=")
		if gate, only := strings.CutPrefix(pause, "approval="); only {
			pause, approval = "", gate
		}
		percent, isWeight := strings.CutSuffix(amount, "%")
		n, err := strconv.Atoi(percent)
		require.NoError(t, err)
		step := &windlassv1.CanaryStep{Replicas: int32(n), Pause: pause, Approval: scriptApproval(t, approval)}
		if isWeight {
			step.Weight, step.Replicas = step.Replicas, 0
		}
		policy.Steps = append(policy.Steps, step)
	}
	if n, err := strconv.Atoi(opts["initial"]); err == nil {
		policy.InitialWeight = int32(n)
	}
	policy.Approval = scriptApproval(t, opts["approval"])
	scriptLimits(t, policy, opts)
	policy.Analysis = scriptAnalysis(t, opts["analysis"])
	policy.Promotion = strings.ReplaceAll(opts["promotion"], "_", " ")
	if retain, err := time.ParseDuration(opts["retain"]); err == nil {
		policy.Retain = durationpb.New(retain)
	}
	if wait, err := time.ParseDuration(opts["capacity"]); err == nil {
		policy.WaitForCapacity = durationpb.New(wait)
	}
	for _, text := range strings.FieldsFunc(opts["waves"], func(r rune) bool { return r == ',' }) {
		parts := strings.Split(text, "/")
		wave := &windlassv1.Wave{}
		name, regions, named := strings.Cut(parts[0], ":")
		if named {
			wave.Name = name
		} else {
			regions = parts[0]
		}
		if regions != "rest" {
			wave.Regions = strings.Split(regions, "+")
		}
		for _, setting := range parts[1:] {
			key, value, _ := strings.Cut(setting, "=")
			switch key {
			case "bake":
				bake, err := time.ParseDuration(value)
				require.NoError(t, err)
				wave.BakeTime = durationpb.New(bake)
			case "parallel":
				n, err := strconv.Atoi(value)
				require.NoError(t, err)
				wave.MaxParallel = int32(n)
			case "approval":
				wave.Approval = scriptApproval(t, value)
			case "onfailure":
				wave.OnFailure = windlassv1.Wave_OnFailure(windlassv1.Wave_OnFailure_value["ON_FAILURE_"+value])
			case "onunreachable":
				wave.OnUnreachable = windlassv1.Wave_OnUnreachable(windlassv1.Wave_OnUnreachable_value["ON_UNREACHABLE_"+value])
			default:
				d.Fatalf(t, "unknown setting %q", key)
			}
		}
		policy.Waves = append(policy.Waves, wave)
	}
	return policy
}

func scriptLimits(t *testing.T, policy *windlassv1.RolloutPolicy, opts map[string]string) {
	switch text := opts["rollback"]; text {
	case "":
	case "off":
		policy.AutoRollback = &windlassv1.AutoRollback{Enabled: new(false)}
	default:
		policy.AutoRollback = &windlassv1.AutoRollback{}
		for name := range strings.SplitSeq(text, "+") {
			policy.AutoRollback.Conditions = append(policy.AutoRollback.Conditions,
				windlassv1.AutoRollback_Condition(windlassv1.AutoRollback_Condition_value["CONDITION_"+strings.ToUpper(name)]))
		}
	}
	if opts["failed"] != "" || opts["unhealthy"] != "" {
		if policy.AutoRollback == nil {
			policy.AutoRollback = &windlassv1.AutoRollback{}
		}
		policy.AutoRollback.FailedInstances, policy.AutoRollback.Unhealthy = opts["failed"], opts["unhealthy"]
		if lasts, err := time.ParseDuration(opts["for"]); err == nil {
			policy.AutoRollback.UnhealthyFor = durationpb.New(lasts)
		}
	}
	for _, text := range strings.FieldsFunc(opts["deadlines"], func(r rune) bool { return r == ',' }) {
		name, value, _ := strings.Cut(text, "=")
		limit, err := time.ParseDuration(value)
		require.NoError(t, err)
		if policy.Deadlines == nil {
			policy.Deadlines = &windlassv1.Deadlines{}
		}
		m := policy.Deadlines.ProtoReflect()
		m.Set(m.Descriptor().Fields().ByName(protoreflect.Name(name)), protoreflect.ValueOfMessage(durationpb.New(limit).ProtoReflect()))
	}
}

// trace makes every connected region obey until nothing happens without time passing. It prints the decisions as they
// are made.
func trace(w *simulation, _ *datadriven.TestData) string {
	var b strings.Builder
	for range 200 {
		n := len(w.log)
		out := w.step()
		for _, h := range w.log[n:] {
			where := ""
			if h.RegionID != "" {
				where = " " + h.RegionID
			}
			version := ""
			if h.Version != 0 {
				version = " v" + strconv.Itoa(int(h.Version))
			}
			b.WriteString(h.What + version + where + ": " + h.Why + "\n")
		}
		for r := range w.regs {
			if w.regs[r].Status == windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
				w.obey(r)
			}
		}
		if !out.Changed() && !Next(w.input(), w.now).Changed() {
			break
		}
	}
	b.WriteString(describe(w.step(), w))
	return b.String()
}
