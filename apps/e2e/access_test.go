package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/ident"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// joinAs creates a region and joins it as its agent. It returns a client with the agent's credential.
func (s *stack) joinAs(t *testing.T, region string) (*client, *agentv1.JoinResponse) {
	t.Helper()
	must(t, s.owner.regions.CreateRegion, &windlassv1.CreateRegionRequest{Mutation: mutation(), Name: region})
	token := must(t, s.owner.regions.CreateJoinToken, &windlassv1.CreateJoinTokenRequest{Mutation: mutation(), Region: region})
	joined := must(t, newClient(s.url, "").agent.Join, &agentv1.JoinRequest{Token: token.Token, JoinId: ident.New("join"), Agent: testAgent()})
	require.Equal(t, region, joined.RegionName)
	return newClient(s.url, joined.Credential.Value), joined
}

func testAgent() *agentv1.AgentInfo {
	return &agentv1.AgentInfo{Version: "1", Runtime: "process", Hostname: "e2e"}
}

func testAgentCredential(t *testing.T, s *stack) {
	mine, _ := s.joinAs(t, "mine")
	theirs, _ := s.joinAs(t, "theirs")
	secret := "value-" + ident.New("s")
	must(t, s.owner.environments.SetSecret, &windlassv1.SetSecretRequest{Mutation: mutation(), Environment: env, Name: "private", Value: secret})
	d := s.deploy(t, "private", spec(regions("mine"), func(d *windlassv1.DeploymentSpec) {
		d.Secrets = []*windlassv1.SecretReference{{EnvName: "PRIVATE", Secret: "private"}}
	}))

	// The agent of the deployment's region sees the deployment, and may read the secret.
	item := firstItem(t, mine, d.DeploymentId, true)
	values := must(t, mine.agent.GetSecrets, &agentv1.GetSecretsRequest{DeploymentId: d.DeploymentId, Generation: item.Generation})
	require.Len(t, values.Secrets, 1)
	require.Equal(t, secret, values.Secrets[0].Value)

	// The agent of the other region gets neither, whatever it asks for.
	require.Nil(t, firstItem(t, theirs, d.DeploymentId, false), "another region's state was sent")
	for _, generation := range []int64{0, item.Generation, item.Generation + 1} {
		_, err := theirs.agent.GetSecrets(t.Context(), &agentv1.GetSecretsRequest{DeploymentId: d.DeploymentId, Generation: generation})
		requireDenied(t, err, connect.CodePermissionDenied)
	}
	_, err := theirs.agent.GetSecrets(t.Context(), &agentv1.GetSecretsRequest{DeploymentId: "dep_unknown"})
	requireDenied(t, err, connect.CodePermissionDenied)

	// A report of the other region's agent changes nothing in this region.
	session := openSession(t, theirs)
	_, err = theirs.agent.Report(t.Context(), &agentv1.ReportRequest{
		SessionId: session.id, Epoch: session.hello.Epoch, Fence: session.hello.Fence, Sequence: 1,
		InventoryBegin: true, InventoryEnd: true, InventorySince: 1,
		Applied: []*agentv1.AppliedState{{
			Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: d.DeploymentId, Epoch: session.hello.Epoch,
			Generation: item.Generation, Phase: agentv1.AppliedState_PHASE_APPLIED,
		}},
		Rollups:   []*agentv1.DeploymentRollup{{DeploymentId: d.DeploymentId, Generation: item.Generation, Ready: 1, ReadyReplicas: 1}},
		Instances: []*agentv1.InstanceState{{Id: "ins_forged", DeploymentId: d.DeploymentId, Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY, Address: "127.0.0.1:1"}},
	})
	t.Logf("a report about another region's deployment: %v", err)
	got := must(t, s.owner.deployments.GetDeployment, &windlassv1.GetDeploymentRequest{Deployment: d.DeploymentId}).Deployment
	require.Equal(t, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING, got.Status)
	for _, r := range got.Regions {
		require.Zero(t, r.Ready, "%v", r)
		require.Zero(t, r.AppliedGeneration, "%v", r)
	}
	list := must(t, s.owner.deployments.ListInstances, &windlassv1.ListInstancesRequest{Deployment: d.DeploymentId})
	require.Empty(t, list.Instances, "forged instances are listed")

	// An agent's credential does not open the users' API, and a user's key does not open the agents' API.
	_, err = mine.apps.ListApps(t.Context(), &windlassv1.ListAppsRequest{})
	requireDenied(t, err, connect.CodeUnauthenticated)
	_, err = s.owner.agent.GetSecrets(t.Context(), &agentv1.GetSecretsRequest{DeploymentId: d.DeploymentId})
	requireDenied(t, err, connect.CodeUnauthenticated)
	_, err = newClient(s.url, "").agent.GetSecrets(t.Context(), &agentv1.GetSecretsRequest{DeploymentId: d.DeploymentId})
	requireDenied(t, err, connect.CodeUnauthenticated)

	// After the credential is revoked, the open stream ends and every call is refused.
	stream := openSession(t, mine)
	must(t, s.owner.regions.RevokeCredentials, &windlassv1.RevokeCredentialsRequest{Mutation: mutation(), Region: "mine"})
	for stream.stream.Receive() {
	}
	require.NoError(t, t.Context().Err())
	_, err = mine.agent.GetSecrets(t.Context(), &agentv1.GetSecretsRequest{DeploymentId: d.DeploymentId, Generation: item.Generation})
	requireDenied(t, err, connect.CodeUnauthenticated)
	_, err = mine.agent.RenewCredential(t.Context(), &agentv1.RenewCredentialRequest{})
	requireDenied(t, err, connect.CodeUnauthenticated)

	s.abandon(t, "private", "mine")
}

// abandon deletes an app in a region without an agent.
func (s *stack) abandon(t *testing.T, app, region string) {
	t.Helper()
	s.eventually(t, region+" is out of reach", func(ctx context.Context) error {
		resp, err := s.owner.regions.GetRegion(ctx, &windlassv1.GetRegionRequest{Region: region})
		if err == nil && resp.Region.Status == windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
			err = errors.New("it is connected")
		}
		return err
	})
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: named(app), AbandonUnreachable: true, Why: "its agent is gone"})
	s.waitGoneApp(t, named(app), app)
}

// session is an agent's stream.
type session struct {
	id     string
	hello  *agentv1.Hello
	stream *connect.ServerStreamForClient[agentv1.WatchResponse]
}

func openSession(t *testing.T, c *client) session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	id := ident.New("ses")
	stream, err := c.agent.Watch(ctx, &agentv1.WatchRequest{SessionId: id, Agent: testAgent()})
	require.NoError(t, err)
	require.True(t, stream.Receive(), "%v", stream.Err())
	hello := stream.Msg().GetHello()
	require.NotNil(t, hello, "the first frame is not hello but %v", stream.Msg())
	return session{id: id, hello: hello, stream: stream}
}

// firstItem returns the item that a new agent receives for the key. With wait it waits until the item comes.
// Without wait it returns nil if the snapshot does not have the item.
func firstItem(t *testing.T, c *client, key string, wait bool) *agentv1.Item {
	t.Helper()
	s := openSession(t, c)
	defer func() { _ = s.stream.Close() }()
	var found *agentv1.Item
	for s.stream.Receive() {
		msg := s.stream.Msg()
		for _, item := range append(msg.GetSnapshotItems().GetItems(), msg.GetDelta().GetItems()...) {
			if item.Key == key {
				found = item
			}
		}
		if found != nil || !wait && msg.GetSnapshotEnd() != nil {
			return found
		}
	}
	require.Fail(t, "the stream ended before the item came", "%v", s.stream.Err())
	return nil
}

func requireDenied(t *testing.T, err error, code connect.Code) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, connect.CodeOf(err), "%v", err)
	require.NotEqual(t, windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED, reasonOf(err), "%v", err)
}

func testCredentialsEnd(t *testing.T, s *stack) {
	must(t, s.owner.regions.CreateRegion, &windlassv1.CreateRegionRequest{Mutation: mutation(), Name: "joining"})
	anyone := newClient(s.url, "").agent
	join := func(token, id string) error {
		_, err := anyone.Join(t.Context(), &agentv1.JoinRequest{Token: token, JoinId: id, Agent: testAgent()})
		return err
	}
	token := must(t, s.owner.regions.CreateJoinToken, &windlassv1.CreateJoinTokenRequest{Mutation: mutation(), Region: "joining"}).Token
	first := ident.New("join")
	require.NoError(t, join(token, first))
	require.NoError(t, join(token, first), "an agent that died before it stored its credential can join again")
	err := join(token, ident.New("join"))
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_JOIN_TOKEN_INVALID, reasonOf(err), "a token was used twice: %v", err)

	brief := must(t, s.owner.regions.CreateJoinToken, &windlassv1.CreateJoinTokenRequest{Mutation: mutation(), Region: "joining", TtlSeconds: 1})
	<-time.After(time.Until(time.UnixMilli(brief.ExpiresAt)) + 50*time.Millisecond)
	for _, bad := range []string{brief.Token, "wlj_made-up", s.keys.APIKey} {
		err := join(bad, ident.New("join"))
		require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_JOIN_TOKEN_INVALID, reasonOf(err), "%v", err)
	}

	expires := time.Now().Add(2 * time.Second)
	expiring := must(t, s.owner.access.CreateApiKey, &windlassv1.CreateApiKeyRequest{
		Mutation: mutation(), Name: "brief", Role: windlassv1.Role_ROLE_VIEWER, ExpiresAt: expires.UnixMilli(),
	})
	brieflyGood := newClient(s.url, expiring.Value)
	must(t, brieflyGood.access.WhoAmI, &windlassv1.WhoAmIRequest{})
	_, err = brieflyGood.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: mutation(), App: named("viewer"), Spec: spec()})
	requireDenied(t, err, connect.CodePermissionDenied)
	<-time.After(time.Until(expires) + 50*time.Millisecond)
	_, err = brieflyGood.access.WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
	requireDenied(t, err, connect.CodeUnauthenticated)

	key := must(t, s.owner.access.CreateApiKey, &windlassv1.CreateApiKeyRequest{Mutation: mutation(), Name: "revoked", Role: windlassv1.Role_ROLE_DEPLOYER})
	revoked := newClient(s.url, key.Value)
	must(t, revoked.access.WhoAmI, &windlassv1.WhoAmIRequest{})
	must(t, s.owner.access.RevokeApiKey, &windlassv1.RevokeApiKeyRequest{Mutation: mutation(), Key: key.Key.Id})
	_, err = revoked.access.WhoAmI(t.Context(), &windlassv1.WhoAmIRequest{})
	requireDenied(t, err, connect.CodeUnauthenticated)

	must(t, s.owner.regions.DeleteRegion, &windlassv1.DeleteRegionRequest{Mutation: mutation(), Region: "joining"})
}

// testBadInput sends plain JSON that no client of Windlass would send.
func testBadInput(t *testing.T, s *stack) {
	const good = `"command":["modelserver"],"regions":["us-east-1"]`
	deploy := func(app, spec string) string { return `{"app":"` + app + `","spec":{` + spec + `}}` }
	for name, bad := range map[string]struct {
		procedure, key, body string
		status               int
		says                 string
	}{
		"no key":            {key: "-", body: `{}`, status: http.StatusUnauthorized, says: "API key"},
		"unknown key":       {key: "wl_" + strings.Repeat("x", 43), body: `{}`, status: http.StatusUnauthorized, says: "unknown"},
		"malformed JSON":    {body: `{"app":`, status: http.StatusBadRequest},
		"unknown region":    {body: deploy(named("bad"), `"command":["x"],"regions":["atlantis"]`), status: http.StatusBadRequest, says: "atlantis"},
		"negative replicas": {body: deploy(named("bad"), good+`,"replicas":-1`), status: http.StatusBadRequest, says: "spec.replicas"},
		"a billion":         {body: deploy(named("bad"), good+`,"replicas":1000000000`), status: http.StatusBadRequest, says: "spec.replicas"},
		"empty command":     {body: deploy(named("bad"), `"regions":["us-east-1"]`), status: http.StatusBadRequest, says: "nothing to run"},
		"SQL in a name":     {body: deploy("default/production/x'; DROP TABLE apps; --", good), status: http.StatusBadRequest},
		"unicode in a name": {body: deploy("default/production/модель", good), status: http.StatusBadRequest},
		"1 MiB of env":      {body: deploy(named("bad"), good+`,"env":{"BIG":"`+strings.Repeat("x", 1<<20)+`"}`), status: http.StatusBadRequest, says: "env"},
		"oversize body":     {body: `{"app":"` + strings.Repeat("x", 64<<20) + `"}`, status: http.StatusTooManyRequests},
		"unknown app":       {procedure: "AppService/GetApp", body: `{"app":"default/production/no-such-app"}`, status: http.StatusNotFound, says: "no-such-app"},
	} {
		t.Run(name, func(t *testing.T) {
			procedure, key := bad.procedure, bad.key
			if procedure == "" {
				procedure = "AppService/Deploy"
			}
			if key == "" {
				key = s.keys.APIKey
			}
			status, body := s.post(t, procedure, key, bad.body)
			if name == "oversize body" && status == 0 {
				return // the server closed the connection, which also refuses the request
			}
			require.Equal(t, bad.status, status, "%s", body)
			require.Contains(t, body, bad.says)
			require.NotContains(t, body, "goroutine")
		})
	}
	_, err := s.owner.apps.GetApp(t.Context(), &windlassv1.GetAppRequest{App: named("bad")})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, reasonOf(err), "something was made: %v", err)

	// Reads also work with GET.
	status, body, err := get(t.Context(), fmt.Sprintf("%s/windlass.v1.AppService/ListApps?encoding=json&message=%%7B%%7D", s.url))
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, status, "%s", body)
}

// post returns the status and the body. The status is 0 without an answer.
func (s *stack) post(t *testing.T, procedure, key, body string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/windlass.v1."+procedure, bytes.NewReader([]byte(body)))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if key != "-" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := (&http.Client{Transport: plainHTTP.Transport}).Do(req) // without its timeout
	if err != nil {
		require.NoError(t, ctx.Err())
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}
