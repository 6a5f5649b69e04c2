package plan

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

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
//	ack us                       the region serves the present route
//	obey us                      the agent does all that is asked of it
//	settle                       every connected region does, until all is quiet
//	unreachable us, connect us, epoch us
//	scale us v1 replicas=3, cancel who=... why=..., delete [abandon]
//	resolved image=... digest=... | message=... [final]
//	after 10s                    time passes
//	speak us                     the region reports, with nothing new
func TestScriptsReadAsDocumented(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.t = t
			run(t, w, d)
			if d.Cmd == "regions" {
				return ""
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
	case "speak":
		w.heard(names[0])
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
}
