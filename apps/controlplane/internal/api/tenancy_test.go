package api_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// ids has an id for each field that takes a reference, by the name of the field.
type ids map[string]string

// requests returns bodies for the method's input: one body that sets all fields that take references, and one body
// for each such field alone. Other fields have allowed values. It returns nil if the input has no such field.
func (x ids) requests(input protoreflect.MessageDescriptor) (bodies []map[string]any) {
	others, names := map[string]any{}, map[string]any{}
	for i := range input.Fields().Len() {
		f := input.Fields().Get(i)
		name := f.JSONName()
		id, isRef := x[name]
		value, isKnown := map[string]any{
			"spec":  map[string]any{"command": []string{"serve"}, "regions": []string{x["regionName"]}},
			"rule":  map[string]any{"name": "walk", "role": "ROLE_VIEWER", "conditions": []any{map[string]any{"claim": "groups", "value": "walk"}}},
			"rules": map[string]any{"approval": map[string]any{"role": "ROLE_OWNER", "count": 1}},
			"role":  "ROLE_VIEWER", "domain": "chat.example.com", "gatewayUrl": "https://gateway.example.com",
			"keys": []string{"deployment:" + x["deployment"]}, "set": map[string]string{"A": "b"}, "own": map[string]any{"apps": 1},
			"timeZone": "", "expiresAt": 0, "overrideFreeze": "", "from": 0, "until": 0,
			"url": "https://hooks.example.com/walk",
		}[name]
		switch {
		case isRef && f.Kind() == protoreflect.StringKind:
			names[name] = id
		case name == "regions":
			names[name] = []string{x["regionName"]}
		case isKnown:
			others[name] = value
		case f.IsList() || f.IsMap():
		case f.Kind() == protoreflect.StringKind:
			others[name] = "walk"
		case f.Kind() == protoreflect.Int32Kind || f.Kind() == protoreflect.Int64Kind:
			others[name] = 1
		}
	}
	if len(names) == 0 {
		return nil
	}
	merge := func(more map[string]any) {
		body := maps.Clone(others)
		maps.Copy(body, more)
		bodies = append(bodies, body)
	}
	merge(names)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		merge(map[string]any{name: names[name]})
	}
	return bodies
}

// An owner calls every method with ids of another workspace. The answer must equal the answer for ids that do not
// exist, so that it reveals nothing, and nothing in the other workspace may change.
func TestTenancy(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	w.deploy("chat")
	w.settle("chat")
	app := w.app("chat")
	_, err := w.environments(w.owner).SetSecret(ctx, &windlassv1.SetSecretRequest{Environment: "default/production", Name: "token", Value: "hunter2-of-acme"})
	require.NoError(t, err)
	deployments, err := w.deployments(w.viewer).ListDeployments(ctx, &windlassv1.ListDeploymentsRequest{App: "chat"})
	require.NoError(t, err)
	rollouts, err := w.rollouts(w.viewer).ListRollouts(ctx, &windlassv1.ListRolloutsRequest{App: "chat"})
	require.NoError(t, err)
	keys, err := w.access(w.owner).ListApiKeys(ctx, &windlassv1.ListApiKeysRequest{})
	require.NoError(t, err)
	projects, err := w.projects(w.viewer).ListProjects(ctx, &windlassv1.ListProjectsRequest{})
	require.NoError(t, err)
	environments, err := w.environments(w.viewer).ListEnvironments(ctx, &windlassv1.ListEnvironmentsRequest{Project: "default"})
	require.NoError(t, err)
	theirs := ids{
		"app": app.GetId(), "deployment": deployments.GetDeployments()[0].GetId(), "rollout": rollouts.GetRollouts()[0].GetId(),
		"instance": ident.New("ins"), "key": keys.GetKeys()[0].GetId(), "workspace": w.workspace,
		"project": projects.GetProjects()[0].GetId(), "environment": environments.GetEnvironments()[0].GetId(), "region": w.regions["us-east-1"],
		"regionName": "us-east-1",
	}
	made := ids{}
	for name, id := range theirs {
		prefix, _, _ := strings.Cut(id, "_")
		made[name] = ident.New(prefix)
	}
	made["regionName"] = "nowhere"
	// neutral returns v as text, in which the names of fields replace ids.
	neutral := func(x ids, v any) string {
		data, err := json.Marshal(v)
		require.NoError(t, err)
		text := string(data)
		for name, id := range x {
			text = strings.ReplaceAll(text, id, "<"+name+">")
		}
		return text
	}
	acme := func() string {
		out := map[string]any{}
		require.NoError(t, w.store.Snapshot(ctx, func(tx store.Tx) error { return dumpWorkspace(tx, w.workspace, out) }))
		// Each call changes the last use of these keys.
		delete(out, w.workspace+" keys")
		data, err := json.Marshal(out)
		require.NoError(t, err)
		return string(data)
	}

	before := acme()
	walked := 0
	all := methods()
	for _, procedure := range slices.Sorted(maps.Keys(all)) {
		m := all[procedure]
		if m.IsStreamingServer() || !api.Access[procedure].Allows(windlassv1.Role_ROLE_OWNER) {
			continue
		}
		codes := map[any]bool{}
		named := made.requests(m.Input())
		for i, body := range theirs.requests(m.Input()) {
			_, got := w.post(w.rival, procedure, body)
			_, want := w.post(w.rival, procedure, named[i])
			// The encoded details also contain the ids.
			delete(got, "details")
			delete(want, "details")
			require.Equal(t, neutral(made, want), neutral(theirs, got), "%s of %v", procedure, body)
			require.NotContains(t, neutral(nil, got), "acme", procedure)
			codes[got["code"]] = true
			walked++
		}
		if len(named) == 0 {
			_, answer := w.post(w.rival, procedure, map[string]any{})
			require.NotContains(t, neutral(theirs, answer), "<", procedure)
			continue
		}
		// PlanDeploy answers with findings.
		require.True(t, codes["not_found"] || codes["permission_denied"] || procedure == windlassv1connect.AppServicePlanDeployProcedure,
			"%s looked up no reference: %v", procedure, codes)
	}
	require.Greater(t, walked, 100, "requests with a reference")
	require.JSONEq(t, before, acme())

	for _, req := range []*windlassv1.WatchAppRequest{{App: app.GetId()}, {App: app.GetId(), Rollout: theirs["rollout"]}} {
		stream, err := w.apps(w.rival).WatchApp(ctx, req)
		require.NoError(t, err)
		require.False(t, stream.Receive())
		require.Equal(t, connect.CodeNotFound, connect.CodeOf(stream.Err()), "%v", stream.Err())
		require.NoError(t, stream.Close())
	}
}
