package plan

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Scripts under testdata tell what happens to one app, one event after the
// other, and what the planner makes of each:
//
//	regions us eu                connected regions of the world
//	deploy us eu [replicas=2] [min_ready=1] [image=...]
//	ready us v1 [replicas=1]     the agent applied the row; replicas are ready
//	doomed us v1 reason=... message=...
//	reject us v1 code=... [retryable]
//	crowded us v1 ready=1 message=...    there is no room for the others
//	ack us                       the region serves the present route
//	obey us                      the agent does all that is asked of it
//	settle                       every connected region does, until all is quiet
//	unreachable us, connect us, epoch us
//	scale us v1 replicas=3, cancel who=... why=..., delete [abandon]
//	resolved image=... digest=... | message=... [final]
//	after 10s                    time passes
//	speak us                     the region reports, with nothing new
//	policy [strategy=recreate] [surge=1] [unavailable=0] waves=(canary:eu/bake=1m,us/parallel=2/onfailure=pause)
//	       [steps=(10%/5m,2/manual)] [initial=10] [promotion=auto_after_5m] [retain=10m] [capacity=1h]
//	       [analysis=(error-rate/max=0.05/interval=1m/min=10/failures=1/hold=10m,latency-p95/ratio=1.5,smoke/hook=5s)]
//	                             next rollouts go by it
//	figures error-rate new=0.01 samples=100 [old=0.02] [oldsamples=90] | problem=... | verdict=fail says=... | none
//	                             what measuring the check comes to; without: nobody measures
//	pause, resume, retry, skip, promote
//	                             what people say of the rollout
//	resize [us] replicas=3       a scale in the middle of it
//	restore v1                   a rollback to what is retained
//	break us                     the newest version crashes there
//	trace                        as settle, without time passing, decision by decision
func TestScriptsReadAsDocumented(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.t = t
			run(t, w, d)
			if d.Cmd == "regions" || d.Cmd == "policy" || d.Cmd == "figures" {
				return ""
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
			return describe(w.step(), w)
		})
	})
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

func run(t *testing.T, w *world, d *datadriven.TestData) {
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
		*w = *newWorld(t, names...)
	case "deploy":
		s := spec(num("replicas", 2), names...)
		s.MinReady = num("min_ready", 0)
		s.ProgressDeadline = durationpb.New(time.Duration(deadline) * time.Millisecond)
		s.Image = opts["image"]
		w.deploy(s)
	case "ready":
		row := w.rows[rowKey{names[1], names[0]}]
		w.apply(names[0], names[1], num("replicas", row.Replicas))
	case "doomed":
		w.apply(names[0], names[1], 0)
		w.observe(names[0], names[1], func(o *model.Observed) {
			o.Running, o.Fail, o.Doomed, o.Restarts = o.Running-1, 1, 1, 3
			o.Reason, o.ReasonMessage = opts["reason"], opts["message"]
		})
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
		}
	case "obey":
		for _, r := range names {
			w.obey(r)
		}
	case "settle":
	case "unreachable", "connect":
		for _, r := range names {
			w.setRegion(r, func(r *model.Region) {
				r.Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE
				if d.Cmd == "connect" {
					r.Status = windlassv1.RegionStatus_REGION_STATUS_CONNECTED
					r.LastReportAt = w.now
				}
			})
		}
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
		w.policy(scriptPolicy(t, opts, d))
	case "pause":
		_, err := Pause(w.staging.Course, "ada", opts["why"], w.now)
		require.NoError(t, err)
	case "resume":
		_, err := Resume(w.staging.Course)
		require.NoError(t, err)
	case "retry":
		_, err := Retry(w.staging.Course, w.now)
		require.NoError(t, err)
	case "skip":
		_, err := SkipBake(w.staging.Course, "ada")
		require.NoError(t, err)
	case "promote":
		_, err := Promote(w.staging.Course, "ada", w.now)
		require.NoError(t, err)
	case "figures":
		w.figures(names[0], opts)
	case "restore":
		require.True(t, w.restore(names[0]), "it cannot be live again at once")
	case "resize":
		region := ""
		if len(names) > 0 && names[0] != "replicas" {
			region = names[0]
		}
		Resize(w.staging.Course, region, num("replicas", 0))
	case "trace", "step":
	case "break", "mend":
		w.broken = map[string]bool{}
		for _, r := range names {
			w.broken[r] = d.Cmd == "break"
		}
	case "speak":
		w.heard(names[0])
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
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
		percent, isWeight := strings.CutSuffix(amount, "%")
		n, err := strconv.Atoi(percent)
		require.NoError(t, err)
		step := &windlassv1.CanaryStep{Replicas: int32(n), Pause: pause}
		if isWeight {
			step.Weight, step.Replicas = step.Replicas, 0
		}
		policy.Steps = append(policy.Steps, step)
	}
	if n, err := strconv.Atoi(opts["initial"]); err == nil {
		policy.InitialWeight = int32(n)
	}
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

// trace lets every connected region obey until all is quiet, or what is to come waits
// for its time, and tells the decisions as they are made.
func trace(w *world, _ *datadriven.TestData) string {
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
