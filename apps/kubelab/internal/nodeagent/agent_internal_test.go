package nodeagent

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/workload"
)

func TestAddress_BelongsToOnePodUntilItIsReleased(t *testing.T) {
	a := newAddresses(netip.MustParsePrefix("127.64.0.0/29"))
	require.True(t, a.reserveFor(netip.MustParseAddr("127.64.0.3"), "old"))
	require.True(t, a.reserveFor(netip.MustParseAddr("127.64.0.3"), "old"))
	require.False(t, a.reserveFor(netip.MustParseAddr("127.64.0.3"), "other"))
	require.False(t, a.reserveFor(netip.MustParseAddr("127.65.0.3"), "other"))
	var got []string
	for _, uid := range []types.UID{"a", "b", "c", "d", "e"} {
		addr, err := a.takeFree(uid)
		require.NoError(t, err)
		got = append(got, addr.String())
	}
	require.Equal(t, []string{"127.64.0.1", "127.64.0.2", "127.64.0.4", "127.64.0.5", "127.64.0.6"}, got)
	_, err := a.takeFree("f")
	require.ErrorContains(t, err, "no address is free in 127.64.0.0/29: 6 pods have one")
	a.release(netip.MustParseAddr("127.64.0.4"), "stranger")
	_, err = a.takeFree("f")
	require.Error(t, err)
	a.release(netip.MustParseAddr("127.64.0.4"), "c")
	addr, err := a.takeFree("f")
	require.NoError(t, err)
	require.Equal(t, "127.64.0.4", addr.String())
}

func TestAddress_ReleasedAddressIsUsedLast(t *testing.T) {
	a := newAddresses(netip.MustParsePrefix("127.64.0.0/28"))
	first, err := a.takeFree("a")
	require.NoError(t, err)
	a.release(first, "a")
	for range 13 {
		addr, err := a.takeFree("b")
		require.NoError(t, err)
		require.NotEqual(t, first, addr)
	}
	again, err := a.takeFree("c")
	require.NoError(t, err)
	require.Equal(t, first, again)
}

func TestWakes_ComeInOrderAndCanBeMoved(t *testing.T) {
	now := time.Unix(1000, 0)
	pods := map[string]*pod{"a": {wakeIndex: -1}, "b": {wakeIndex: -1}, "c": {wakeIndex: -1}}
	var w wakes
	w.setTime(pods["a"], now.Add(3*time.Second))
	w.setTime(pods["b"], now.Add(1*time.Second))
	w.setTime(pods["c"], now.Add(2*time.Second))
	w.setTime(pods["b"], now.Add(9*time.Second))
	w.setTime(pods["a"], time.Time{})
	w.setTime(pods["a"], time.Time{})
	require.Nil(t, w.popDue(now))
	require.Same(t, pods["c"], w.popDue(now.Add(9*time.Second)))
	require.Same(t, pods["b"], w.popDue(now.Add(9*time.Second)))
	require.Nil(t, w.popDue(now.Add(time.Hour)))
}

func TestJobQueue_KeepsItsWidthAndSkipsUnneededJobs(t *testing.T) {
	l := jobQueue{width: 2}
	ran := make(chan int, 10)
	add := func(n int, needed bool) {
		l.addJob(func() func() {
			if !needed {
				return nil
			}
			return func() { ran <- n }
		})
	}
	for n := range 6 {
		add(n, n != 3)
	}
	require.ElementsMatch(t, []int{0, 1}, []int{<-ran, <-ran})
	require.Empty(t, ran)
	l.jobDone()
	require.Equal(t, 2, <-ran)
	l.jobDone()
	require.Equal(t, 4, <-ran)
	l.jobDone()
	require.Equal(t, 5, <-ran)
	l.jobDone()
	l.jobDone()
	require.Zero(t, l.running)
}

func TestLog_OptionsAreChecked(t *testing.T) {
	now := time.Unix(1000, 0)
	o, err := parseLogOptions(url.Values{"tailLines": {"5"}, "follow": {"true"}, "sinceSeconds": {"10"}}, now)
	require.NoError(t, err)
	require.Equal(t, logOptions{follow: true, tail: 5, limit: -1, since: now.Add(-10 * time.Second)}, o)
	for name, value := range map[string]string{"tailLines": "-1", "limitBytes": "many", "follow": "perhaps", "sinceTime": "yesterday"} {
		_, err := parseLogOptions(url.Values{name: {value}}, now)
		require.ErrorContains(t, err, name)
	}
}

func TestLog_CopyFollowsItsOptions(t *testing.T) {
	log := &workload.Log{}
	_, _ = log.Write([]byte("one\ntwo\nthree\n"))
	for want, o := range map[string]logOptions{
		"one\ntwo\nthree\n": {tail: -1, limit: -1},
		"three\n":           {tail: 1, limit: -1},
		"":                  {tail: 0, limit: -1},
		"one\nt":            {tail: -1, limit: 5},
	} {
		var out bytes.Buffer
		require.NoError(t, copyLog(t.Context(), &out, log, o))
		require.Equal(t, want, out.String())
	}
	var out bytes.Buffer
	require.NoError(t, copyLog(t.Context(), &out, log, logOptions{tail: 1, limit: -1, timestamps: true}))
	at, text, _ := strings.Cut(out.String(), " ")
	require.Equal(t, "three\n", text)
	_, err := time.Parse(time.RFC3339Nano, at)
	require.NoError(t, err)
}

func TestImage_OnlyTheHostRepositoryMeansTheHost(t *testing.T) {
	for image, want := range map[string]string{
		"kubelab.local/host": "", "kubelab.local/host:v1": "", "kubelab.local/host@sha256:ab": "",
		"kubelab.local/host/usr/bin/env": "/usr/bin/env", "kubelab.local/host/opt/a:b/c:v1@sha256:ab": "/opt/a:b/c",
	} {
		entrypoint, ok := hostImage(image)
		require.True(t, ok, image)
		require.Equal(t, want, entrypoint, image)
	}
	for _, image := range []string{"kubelab.local/hostile", "registry/kubelab.local/host", "registry/x:v1"} {
		_, ok := hostImage(image)
		require.False(t, ok, image)
	}
}

func TestHandlerProbe_AnswersAsASocketDoes(t *testing.T) {
	req := func() *http.Request {
		r, err := http.NewRequest(http.MethodGet, "http://127.64.0.2:8000/health?x=1", nil)
		require.NoError(t, err)
		return r
	}
	for want, handler := range map[string]http.HandlerFunc{
		"HTTP probe failed with statuscode: 503":         func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"Get \"http://127.64.0.2:8000/health?x=1\": EOF": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"Get \"http://127.64.0.2:8000/health?x=1\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		a := callHandler(handler, req(), 10*time.Millisecond)
		require.Equal(t, lifecycle.Answer{Output: want}, a)
	}
	a := callHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "127.64.0.2:8000", r.Host)
		require.Equal(t, "/health", r.URL.Path)
		_, _ = w.Write([]byte("ok"))
	}), req(), time.Second)
	require.True(t, a.OK)
}

func TestEnvironment_IsExpandedInOrder(t *testing.T) {
	v := newValues(nil)
	pod := &corev1.Pod{}
	pod.Name, pod.Labels = "web-1", map[string]string{"windlass.run/role": "main"}
	pod.Spec.NodeName = "n1"
	ref := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	c := &corev1.Container{Env: []corev1.EnvVar{
		{Name: "IP", ValueFrom: ref("status.podIP")},
		{Name: "NODE", ValueFrom: ref("spec.nodeName")},
		{Name: "ROLE", ValueFrom: ref("metadata.labels['windlass.run/role']")},
		{Name: "URL", Value: "http://$(IP)/$(LATER)$$(IP)"},
		{Name: "LATER", Value: "x"},
	}}
	env, err := v.containerEnv(t.Context(), pod, c, address{pod: netip.MustParseAddr("127.64.0.2"), node: "127.0.0.1"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"IP": "127.64.0.2", "NODE": "n1", "ROLE": "main", "LATER": "x", "URL": "http://127.64.0.2/$(LATER)$(IP)",
	}, env)
}

func TestConfig_ErrorNamesTheField(t *testing.T) {
	_, err := New(Config{CIDR: netip.MustParsePrefix("10.0.0.0/16"), NodeAddress: "node", RestartBackoff: lifecycle.Backoff{Base: 2, Max: 1}})
	for _, name := range []string{"Kubeconfig", "Log", "CIDR", "NodeAddress", "RestartBackoff"} {
		require.ErrorContains(t, err, name)
	}
}

func TestAgent_EndsEvenIfNoAPIServerAnswers(t *testing.T) {
	a, err := New(Config{Kubeconfig: &rest.Config{Host: "https://127.0.0.1:1"}, CIDR: netip.MustParsePrefix("127.64.0.0/16"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.NotZero(t, a.KubeletPort())
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.NoError(t, a.Run(ctx))
}
