package api_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	conn "github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

type object = map[string]any

// spec returns a valid spec in JSON with the fields of edit.
func spec(edit object) object {
	s := object{"command": []string{"modelserver"}, "regions": []string{"us-east-1"}}
	maps.Copy(s, edit)
	return s
}

func TestInput_InvalidIsRefusedByFieldAndChangesNothing(t *testing.T) {
	w := setup(t)
	mine := w.deploy("chat", args("a"))
	w.settle("chat")
	id := w.instance("other")
	expired := "wl_" + "expiredexpiredexpiredexpiredexpiredexpired1"
	w.update(func(tx store.Tx) error {
		return tx.InsertAPIKey(model.APIKey{
			ID: ident.New("key"), WorkspaceID: w.workspace, Name: "expired", Role: windlassv1.Role_ROLE_OWNER,
			Prefix: "wl_expir", Hash: model.HashToken(expired), CreatedAt: 1, ExpiresAt: time.Now().Add(-time.Second).UnixMilli(),
		})
	})
	deploy := func(edit object) object { return object{"app": "chat", "spec": spec(edit)} }
	const (
		validation = "ERROR_REASON_VALIDATION"
		notFound   = "ERROR_REASON_NOT_FOUND"
	)
	for _, c := range []struct {
		name      string
		key       string
		procedure string
		body      any
		code      string
		reason    string
		field     string
	}{
		{
			"unknown region", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"regions": []string{"mars"}}),
			"invalid_argument", "ERROR_REASON_UNKNOWN_REGION", "spec.regions[0]",
		},
		{
			"a region twice", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"regions": []string{"us-east-1", "us-east-1"}}),
			"invalid_argument", validation, "spec.regions",
		},
		{
			"no region", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"regions": []string{}}),
			"invalid_argument", validation, "spec.regions",
		},
		{
			"negative replicas", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"replicas": -1}),
			"invalid_argument", validation, "spec.replicas",
		},
		{
			"a billion replicas", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"replicas": 1_000_000_000}),
			"invalid_argument", validation, "spec.replicas",
		},
		{
			"scale to a billion", w.deployer, conn.AppServiceScaleProcedure,
			object{"app": "chat", "replicas": 1_000_000_000},
			"invalid_argument", validation, "replicas",
		},
		{
			"scale below zero", w.deployer, conn.AppServiceScaleProcedure,
			object{"app": "chat", "replicas": -1},
			"invalid_argument", validation, "replicas",
		},
		{
			"nothing to run", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"command": []string{}}),
			"invalid_argument", validation, "spec",
		},
		{
			"an empty command", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"command": []string{""}}),
			"invalid_argument", validation, "spec.command[0]",
		},
		{
			"a role's empty command", w.deployer, conn.AppServiceDeployProcedure,
			deploy(object{"roles": []object{{"name": "main", "command": []string{"x", ""}}}}),
			"invalid_argument", validation, "spec.roles[0].command[1]",
		},
		{
			"nine roles", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"roles": slices.Repeat([]object{{"name": "a"}}, 9)}),
			"invalid_argument", validation, "spec.roles",
		},
		{
			"no spec", w.deployer, conn.AppServiceDeployProcedure,
			object{"app": "chat"},
			"invalid_argument", validation, "spec",
		},
		{
			"a variable of 1 MiB", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"env": object{"A": strings.Repeat("x", 1<<20)}}),
			"invalid_argument", validation, `spec.env["A"]`,
		},
		{
			"variables of 1 MiB", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"env": manyVariables(1 << 20)}),
			"invalid_argument", validation, "spec.env",
		},
		{
			"a variable's name", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"env": object{"A B": "x"}}),
			"invalid_argument", validation, `spec.env["A B"]`,
		},
		{
			"environment's variables of 1 MiB", w.owner, conn.EnvironmentServiceCreateEnvironmentProcedure,
			object{"project": "default", "name": "big", "variables": manyVariables(1 << 20)},
			"invalid_argument", validation, "variables",
		},
		{
			"duplicate app", w.deployer, conn.AppServiceCreateAppProcedure,
			object{"name": "chat"},
			"already_exists", "ERROR_REASON_ALREADY_EXISTS", "name",
		},
		{
			"duplicate project", w.owner, conn.ProjectServiceCreateProjectProcedure,
			object{"name": "default"},
			"already_exists", "ERROR_REASON_ALREADY_EXISTS", "name",
		},
		{
			"duplicate environment", w.owner, conn.EnvironmentServiceCreateEnvironmentProcedure,
			object{"project": "default", "name": "production"},
			"already_exists", "ERROR_REASON_ALREADY_EXISTS", "name",
		},
		{
			"duplicate region", w.owner, conn.RegionServiceCreateRegionProcedure,
			object{"name": "us-east-1"},
			"already_exists", "ERROR_REASON_ALREADY_EXISTS", "name",
		},
		{
			"duplicate key", w.owner, conn.AccessServiceCreateApiKeyProcedure,
			object{"name": "owner", "role": "ROLE_VIEWER"},
			"already_exists", "ERROR_REASON_ALREADY_EXISTS", "name",
		},
		{
			"a key for an operator", w.owner, conn.AccessServiceCreateApiKeyProcedure,
			object{"name": "root", "role": "ROLE_OPERATOR"},
			"permission_denied", "ERROR_REASON_PERMISSION_DENIED", "",
		},
		{
			"a key that has expired", w.owner, conn.AccessServiceCreateApiKeyProcedure,
			object{"name": "old", "role": "ROLE_VIEWER", "expiresAt": "1"},
			"invalid_argument", validation, "expiresAt",
		},
		{
			"a platform region by an owner", w.owner, conn.RegionServiceCreateRegionProcedure,
			object{"name": "shared", "platform": true},
			"permission_denied", "ERROR_REASON_PERMISSION_DENIED", "",
		},
		{
			"another workspace's app", w.rival, conn.AppServiceScaleProcedure,
			object{"app": mine.GetAppId(), "replicas": 1},
			"not_found", notFound, "app",
		},
		{
			"another workspace's deployment", w.rival, conn.DeploymentServiceGetDeploymentProcedure,
			object{"deployment": mine.GetDeploymentId()},
			"not_found", notFound, "deployment",
		},
		{
			"another workspace's rollout", w.rival, conn.RolloutServiceGetRolloutProcedure,
			object{"rollout": mine.GetRolloutId()},
			"not_found", notFound, "rollout",
		},
		{
			"another workspace's instance", w.rival, conn.DeploymentServiceRestartInstanceProcedure,
			object{"instance": id},
			"not_found", notFound, "instance",
		},
		{
			"another workspace's region", w.rival, conn.RegionServiceRevokeCredentialsProcedure,
			object{"region": w.regions["us-east-1"]},
			"not_found", notFound, "region",
		},
		{
			"another workspace's region by name", w.rival, conn.AppServiceDeployProcedure,
			object{"app": "x", "spec": spec(nil)},
			"invalid_argument", "ERROR_REASON_UNKNOWN_REGION", "spec.regions[0]",
		},
		{
			"another workspace", w.rival, conn.WorkspaceServiceGetWorkspaceProcedure,
			object{"workspace": w.workspace},
			"not_found", notFound, "workspace",
		},
		{
			"unicode in a name", w.deployer, conn.AppServiceCreateAppProcedure,
			object{"name": "schön-🚀"},
			"invalid_argument", validation, "name",
		},
		{
			"SQL in a name", w.deployer, conn.AppServiceCreateAppProcedure,
			object{"name": "a'; DROP TABLE apps; --"},
			"invalid_argument", validation, "name",
		},
		{
			"unicode in a reference", w.viewer, conn.AppServiceGetAppProcedure,
			object{"app": "déjà/vu/🚀"},
			"not_found", notFound, "app",
		},
		{
			"SQL in a reference", w.viewer, conn.AppServiceGetAppProcedure,
			object{"app": "' OR 1=1 --"},
			"not_found", notFound, "app",
		},
		{
			"SQL in the name of a deployed app", w.deployer, conn.AppServiceDeployProcedure,
			object{"app": "' OR 1=1 --", "spec": spec(nil)},
			"invalid_argument", validation, "app",
		},
		{
			"SQL in an id", w.viewer, conn.RolloutServiceGetRolloutProcedure,
			object{"rollout": "rol_' OR 1=1"},
			"not_found", notFound, "rollout",
		},
		{
			"a page that is too large", w.viewer, conn.AppServiceListAppsProcedure,
			object{"page": object{"size": 501}},
			"invalid_argument", validation, "page.size",
		},
		{
			"an invalid page token", w.viewer, conn.AppServiceListAppsProcedure,
			object{"page": object{"token": "%%%"}},
			"invalid_argument", validation, "page.token",
		},
		{
			"a page token of control characters", w.viewer, conn.AppServiceListAppsProcedure,
			object{"page": object{"token": base64.RawURLEncoding.EncodeToString([]byte("ü' OR 1"))}},
			"invalid_argument", validation, "page.token",
		},
		{
			"an idempotency key of control characters", w.deployer, conn.AppServiceCreateAppProcedure,
			object{"name": "new", "mutation": object{"idempotencyKey": "a\nb"}},
			"invalid_argument", validation, "mutation.idempotencyKey",
		},
		{
			"an old resource version", w.deployer, conn.AppServiceUpdateAppProcedure,
			object{"app": "chat", "resourceVersion": "1"},
			"aborted", "ERROR_REASON_CONFLICT", "resourceVersion",
		},
		{
			"an unknown field", w.deployer, conn.AppServiceCreateAppProcedure,
			object{"name": "new", "colour": "red"},
			"invalid_argument", "", "",
		},
		{
			"a misspelt field of a spec", w.deployer, conn.AppServiceDeployProcedure, deploy(object{"replica": 5}),
			"invalid_argument", "", "",
		},
		{
			"an empty body", w.deployer, conn.AppServiceCreateAppProcedure,
			[]byte{},
			"invalid_argument", "", "",
		},
		{
			"a number for a name", w.deployer, conn.AppServiceCreateAppProcedure,
			object{"name": 7},
			"invalid_argument", "", "",
		},
		{
			"malformed JSON", w.deployer, conn.AppServiceCreateAppProcedure, []byte(`{"name": "new"`),
			"invalid_argument", "", "",
		},
		{
			"no JSON", w.deployer, conn.AppServiceCreateAppProcedure, []byte("\x00\xff"),
			"invalid_argument", "", "",
		},
		{
			"an oversize body", w.deployer, conn.AppServiceCreateAppProcedure, []byte(`{"name": "` + strings.Repeat("x", 5<<20) + `"}`),
			"resource_exhausted", "", "",
		},
		{
			"an expired key", expired, conn.AppServiceCreateAppProcedure,
			object{"name": "new"},
			"unauthenticated", "ERROR_REASON_UNAUTHENTICATED", "",
		},
		{
			"no key", "", conn.AppServiceCreateAppProcedure,
			object{"name": "new"},
			"unauthenticated", "ERROR_REASON_UNAUTHENTICATED", "",
		},
		{
			"a viewer's key", w.viewer, conn.AppServiceCreateAppProcedure,
			object{"name": "new"},
			"permission_denied", "ERROR_REASON_PERMISSION_DENIED", "",
		},
		{
			"a viewer's key and a bad request", w.viewer, conn.AppServiceCreateAppProcedure,
			object{"name": "schön"},
			"permission_denied", "ERROR_REASON_PERMISSION_DENIED", "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := w.dump()
			_, body := w.post(c.key, c.procedure, c.body)
			require.Equal(t, c.code, body["code"], "%v", body)
			require.NotEmpty(t, body["message"])
			require.Equal(t, before, w.dump(), "nothing changed")
			if c.reason == "" {
				return // refused before the handler: only the code can be checked
			}
			detail := detailIn(t, body)
			require.Equal(t, c.reason, detail["reason"], "%v", body)
			if c.field == "" {
				require.NotContains(t, detail, "field", "%v", body)
			} else {
				require.Equal(t, c.field, detail["field"], "%v", body)
			}
		})
	}
}

// detailIn returns the ErrorDetail of an error in JSON.
func detailIn(t *testing.T, body object) object {
	t.Helper()
	details, ok := body["details"].([]any)
	require.True(t, ok, "%v", body)
	require.Len(t, details, 1)
	first, ok := details[0].(object)
	require.True(t, ok)
	require.Equal(t, "windlass.v1.ErrorDetail", first["type"])
	debug, ok := first["debug"].(object)
	require.True(t, ok, "%v", body)
	return debug
}

func manyVariables(size int) object {
	out := object{}
	for i := range 16 {
		out[fmt.Sprintf("V%d", i)] = strings.Repeat("x", size/16)
	}
	return out
}

func TestReads_AnswerToPlainGet(t *testing.T) {
	w := setup(t)
	w.deploy("chat")
	query := url.Values{"connect": {"v1"}, "encoding": {"json"}, "message": {`{"app":"chat"}`}}
	get := func(procedure string) (int, map[string]any) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+procedure+"?"+query.Encode(), nil)
		require.NoError(t, err)
		return w.do(w.viewer, req)
	}
	status, body := get(conn.AppServiceGetAppProcedure)
	require.Equal(t, 200, status, "%v", body)
	app, ok := body["app"].(object)
	require.True(t, ok)
	require.Equal(t, "chat", app["name"])

	status, body = w.post(w.viewer, conn.AppServiceGetAppProcedure, object{"app": "chat"})
	require.Equal(t, 200, status)
	require.Equal(t, app["id"], body["app"].(object)["id"])

	_, body = w.post(w.viewer, conn.AppServiceGetAppProcedure, object{"ap": "chat"})
	require.Contains(t, body["message"], `unknown field "ap"`)

	// A mutation cannot be called with GET, so no link can cause one.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+conn.AppServiceCancelProcedure+"?"+query.Encode(), nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+w.owner)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, res.StatusCode)
}

func TestPages_AreStableUnderInserts(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	for _, name := range []string{"b", "d", "f", "h", "j"} {
		_, err := w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Name: name})
		require.NoError(t, err)
	}
	var names []string
	page := &windlassv1.PageRequest{Size: 2}
	for {
		res, err := w.apps(w.viewer).ListApps(ctx, &windlassv1.ListAppsRequest{Page: page, Environment: "default/production"})
		require.NoError(t, err)
		require.LessOrEqual(t, len(res.GetApps()), 2)
		for _, app := range res.GetApps() {
			names = append(names, app.GetName())
		}
		if len(names) == 2 {
			_, err := w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Name: "a"})
			require.NoError(t, err)
			_, err = w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Name: "e"})
			require.NoError(t, err)
		}
		if page.Token = res.GetPage().GetNext(); page.Token == "" {
			break
		}
	}
	require.Equal(t, []string{"b", "d", "e", "f", "h", "j"}, names)
}

func TestUpdate_OfAChangedVersionIsRefused(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	made, err := w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Name: "chat"})
	require.NoError(t, err)
	version := made.GetApp().GetResourceVersion()
	updated, err := w.apps(w.deployer).UpdateApp(ctx, &windlassv1.UpdateAppRequest{App: "chat", Description: "x", ResourceVersion: version})
	require.NoError(t, err)
	require.Equal(t, updated.GetApp().String(), w.app("chat").String(), "the answer equals the stored app")
	_, err = w.apps(w.deployer).UpdateApp(ctx, &windlassv1.UpdateAppRequest{App: "chat", Description: "y", ResourceVersion: version})
	refused(t, err, connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
}
