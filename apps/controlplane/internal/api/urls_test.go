package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (h *harness) urlsOf(app string) []string {
	h.t.Helper()
	res, err := h.apps(h.viewer).GetApp(h.t.Context(), &windlassv1.GetAppRequest{App: app})
	require.NoError(h.t, err)
	watch, err := h.apps(h.viewer).WatchApp(h.t.Context(), &windlassv1.WatchAppRequest{App: app})
	require.NoError(h.t, err)
	defer watch.Close()
	require.True(h.t, watch.Receive(), "%v", watch.Err())
	require.Equal(h.t, res.GetApp().GetUrls(), watch.Msg().GetApp().GetUrls(), "WatchApp shows the same URLs")
	return res.GetApp().GetUrls()
}

func TestURLs_AreHostsAtGatewaysOrElseInstances(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		us, eu := w.regions["us-east-1"], w.regions["eu-west-1"]
		made := w.deploy("chat", args("a"))
		require.Empty(t, w.urlsOf("chat"), "nothing is live yet")
		app := w.settle("chat")
		host := "chat-" + app.GetId()[len(app.GetId())-12:] + ".apps.test"
		ready := windlassv1.InstanceStatus_INSTANCE_STATUS_READY
		w.putInstance(made, ident.New("ins"), "us-east-1", ready)
		require.Equal(t, []string{"http://127.0.0.1:8000"}, w.urlsOf("chat"), "no region has gateways")

		w.gateways = map[string]string{eu: "http://10.0.0.1:7710"}
		w.settle("chat")
		w.putInstance(made, ident.New("ins"), "eu-west-1", ready)
		require.Equal(t, []string{"http://" + host + ":7710", "http://127.0.0.1:8000"}, w.urlsOf("chat"),
			"the host's URL comes first, then the instance of the region without gateways")

		w.gateways[us] = "https://us.example.com"
		w.settle("chat")
		require.Equal(t, []string{"http://" + host + ":7710", "https://" + host}, w.urlsOf("chat"))
		w.gateways[eu] = "https://eu.example.com"
		w.settle("chat")
		require.Equal(t, []string{"https://" + host}, w.urlsOf("chat"), "both regions have the same URL")

		d, err := w.addDomain("chat", "chat.example.com")
		require.NoError(t, err)
		require.Equal(t, []string{"https://" + host}, w.urlsOf("chat"), "a domain that is not verified has no URL")
		w.records.set(d.GetTxtName(), d.GetTxtValue())
		_, err = w.verifyDomain("chat", d.GetName())
		require.NoError(t, err)
		require.Equal(t, []string{"https://" + host, "https://chat.example.com"}, w.urlsOf("chat"))

		// A version that waits for promotion has URLs of its preview host.
		policy := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Promotion: "manual"}
		next, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(args("b")), Rollout: policy})
		require.NoError(t, err)
		w.settle("chat")
		ro, err := w.rollouts(w.viewer).GetRollout(t.Context(), &windlassv1.GetRolloutRequest{Rollout: next.GetRolloutId()})
		require.NoError(t, err)
		require.Equal(t, []string{"https://v2-" + host}, ro.GetRollout().GetPreviewUrls())
		require.Equal(t, []string{"https://" + host, "https://chat.example.com"}, w.urlsOf("chat"))
	})
}
