package access

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestPodGroups(t *testing.T) {
	answers := map[string]string{}
	var made []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.Method+" "+r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		}
		if r.Method == http.MethodPost {
			made, _ = io.ReadAll(r.Body)
			if answer == "exists" {
				w.WriteHeader(http.StatusConflict)
				answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409}`
			}
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	api, err := New(Config{
		Client: &rest.Config{Host: server.URL}, Region: "east", AgentVersion: "test", CallTimeout: 5 * time.Second, Outage: Outage, Reopen: Reopen,
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Random: func() float64 { return 0 },
	})
	require.NoError(t, err)
	const group = "GET /apis/scheduling.k8s.io"
	version := func() string {
		out, err := api.PodGroupVersion(t.Context())
		require.NoError(t, err)
		return out
	}

	require.Empty(t, version(), "no such API")
	answers[group] = `{"kind":"APIGroup","versions":[{"version":"v1"},{"version":"v1alpha2"},{"version":"v1beta1"}]}`
	answers[group+"/v1beta1"] = `{"kind":"APIResourceList","resources":[{"name":"priorityclasses"},{"name":"workloads"}]}`
	require.Empty(t, version(), "no version has PodGroups")
	answers[group+"/v1alpha2"] = `{"kind":"APIResourceList","resources":[{"name":"podgroups"},{"name":"podgroups/status"}]}`
	require.Equal(t, "v1alpha2", version())
	answers[group+"/v1beta1"] = `{"kind":"APIResourceList","resources":[{"name":"podgroups"}]}`
	require.Equal(t, "v1beta1", version())

	g := &PodGroup{
		Name: "chat-gang", Namespace: "shop", Labels: map[string]string{"a": "b"}, MinCount: 2,
		Owners: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "chat-0", UID: "u"}},
	}
	const path = "POST /apis/scheduling.k8s.io/v1alpha2/namespaces/shop/podgroups"
	require.Error(t, api.MakePodGroup(t.Context(), "v1alpha2", g))
	answers[path] = `{}`
	require.NoError(t, api.MakePodGroup(t.Context(), "v1alpha2", g))
	var got map[string]any
	require.NoError(t, json.Unmarshal(made, &got))
	require.Equal(t, map[string]any{
		"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
		"metadata": map[string]any{
			"name": "chat-gang", "namespace": "shop", "labels": map[string]any{"a": "b"},
			"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat-0", "uid": "u"}},
		},
		"spec": map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": 2.0}}},
	}, got)
	answers[path] = "exists"
	require.NoError(t, api.MakePodGroup(t.Context(), "v1alpha2", g))
}
