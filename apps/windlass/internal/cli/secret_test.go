package cli

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestSecretSet_FollowsEachRolloutByItsID(t *testing.T) {
	server := newFakeServer(t)
	server.change(func() {
		server.answers = map[string]func(proto.Message){"SetSecret": func(m proto.Message) {
			r := m.ProtoReflect()
			r.Clear(r.Descriptor().Fields().ByName("unchanged"))
			list := r.Mutable(r.Descriptor().Fields().ByName("rollouts")).List()
			one := list.AppendMutable().Message()
			one.Set(one.Descriptor().Fields().ByName("rollout_id"), protoreflect.ValueOfString("rol_2"))
			one.Set(one.Descriptor().Fields().ByName("app_id"), protoreflect.ValueOfString("app_2"))
			one.Set(one.Descriptor().Fields().ByName("app"), protoreflect.ValueOfString("other"))
		}}
	})
	run := commandRun{args: []string{"secret", "set", "a"}, stdin: "x"}
	// The second app has a newer rollout. The control plane sends the second rollout because the request has its id.
	second := func(change func(*windlassv1.Rollout)) func(*windlassv1.WatchAppResponse) {
		return func(r *windlassv1.WatchAppResponse) {
			r.AskedRollout = &windlassv1.Rollout{Id: "rol_2", Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED}
			change(r.AskedRollout)
		}
	}
	for name, tc := range map[string]struct {
		watch   func(*windlassv1.WatchAppResponse)
		more    []string
		code    int
		outcome string
	}{
		"both succeed":          {second(func(*windlassv1.Rollout) {}), nil, 0, outcomeSucceeded},
		"the second fails":      {second(func(r *windlassv1.Rollout) { r.Status = windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED }), nil, 1, outcomeFailed},
		"the second superseded": {second(func(r *windlassv1.Rollout) { r.Status = windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED }), nil, codeSuperseded, outcomeSuperseded},
		"the second waits": {second(func(r *windlassv1.Rollout) {
			r.Status, r.Progress = windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, inFlight(region("eu", func(g *windlassv1.RegionProgress) { g.WaitsForPromotion = true })).Progress
		}), nil, codePeople, outcomePeople},
		"until promotion": {second(func(r *windlassv1.Rollout) {
			r.Status, r.Progress = windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, inFlight(region("eu", func(g *windlassv1.RegionProgress) { g.WaitsForPromotion = true })).Progress
		}), []string{"--until", "promotion"}, 0, outcomePeople},
		"the second fails after patience": {second(func(r *windlassv1.Rollout) {
			r.Status = windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED
		}), []string{"--patience", "1ns"}, 1, outcomeFailed},
		"the second goes on after patience": {second(func(r *windlassv1.Rollout) {
			r.Status = windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING
		}), []string{"--patience", "1ns"}, codePatience, outcomePatience},
		"not waited for": {func(r *windlassv1.WatchAppResponse) { panic("watched") }, []string{"--wait=false"}, 0, outcomeAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			run := run
			run.watch = tc.watch
			got := runCommand(t, server, false, run, append(tc.more, "-o", "json")...)
			require.Equal(t, tc.code, got.code, got.stderr)
			require.Contains(t, got.stdout, fmt.Sprintf(`"outcome": %q`, tc.outcome))
			require.Contains(t, got.stdout, `"app_2": "`+tc.outcome+`"`)
		})
	}
}

func TestEnvList_HasOneShape(t *testing.T) {
	server := newFakeServer(t)
	one := runCommand(t, server, false, commandRun{args: []string{"env", "list"}}, "-o", "json")
	other := runCommand(t, server, false, commandRun{args: []string{"env", "list", "a"}}, "-o", "json")
	require.Equal(t, one.stdout, other.stdout)
	require.Contains(t, one.stdout, `"variables": {`)
}
