package dev_test

import (
	"encoding/base64"
	"encoding/pem"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
)

// smallKubelab does what dev needs of kubelab. It writes a kubeconfig, serves /readyz of the API server, and
// ends on a signal.
func smallKubelab(args []string) int {
	var f flag.FlagSet
	config, ready := f.String("kubeconfig", "", ""), f.String("ready-file", "", "")
	for _, other := range []string{"data-dir", "cidr"} {
		f.String(other, "", "")
	}
	f.Func("group", "", func(string) error { return nil })
	if args[0] != "up" || f.Parse(args[1:]) != nil {
		return 2
	}
	token := "secret"
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	text := fmt.Sprintf("clusters:\n- cluster: {server: %q, certificate-authority-data: %q}\nusers:\n- user: {token: %q}\n",
		api.URL, base64.StdEncoding.EncodeToString(ca), token)
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	if os.WriteFile(*config, []byte(text), 0o600) != nil || os.WriteFile(*ready, nil, 0o600) != nil {
		return 1
	}
	<-told
	return 0
}

func setupClusters(t *testing.T) *machine {
	t.Helper()
	m := setup(t)
	self, err := os.Executable()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "kubelab")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\nexec "+self+` __kubelab "$@"`+"\n"), 0o700))
	m.env = append(m.env, kubelab.EnvProgram+"="+path)
	return m
}

// arguments returns the arguments of a process.
func arguments(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	require.NoError(t, err)
	return strings.ReplaceAll(string(b), "\x00", " ")
}

func TestCluster_OfEachRegionIsKept(t *testing.T) {
	m := setupClusters(t)
	first := m.up("--runtime", "kubernetes", "--regions", "here,there", "--nodes", "3", "--gpus", "4:NVIDIA-L4")
	s := m.healthy()
	require.Len(t, s.Processes, 9)
	require.Len(t, s.Networks, 2)
	require.NotEqual(t, s.Networks["here"], s.Networks["there"])
	const group = "name=gpu,nodes=3,gpu=nvidia.com/gpu=4,gpu-product=NVIDIA-L4"
	require.Equal(t, []string{group}, s.Groups)
	clusters := map[string]int{}
	for _, p := range s.Processes {
		if region, ok := strings.CutPrefix(p.Name, "kubelab/"); ok {
			clusters[region] = p.PID
			require.FileExists(t, p.Kubeconfig)
			require.Contains(t, first.output(), "KUBECONFIG="+p.Kubeconfig)
			args := arguments(t, p.PID)
			require.Contains(t, args, "--group="+group)
			require.Contains(t, args, fmt.Sprintf("--cidr=127.%d.0.0/16", s.Networks[region]))
		}
	}
	require.Contains(t, first.output(), "kubelab's program")
	pools, err := os.ReadFile(filepath.Join(m.dir, "agents", "here", "pools.yaml"))
	require.NoError(t, err)
	require.Equal(t, "pools:\n- name: gpu\n  nodeSelector:\n    kubelab.windlass.run/group: gpu\n", string(pools))
	args, err := os.ReadFile(filepath.Join(m.dir, "agents", "there", "args.json"))
	require.NoError(t, err)
	require.Contains(t, string(args), "--runtime=kubernetes")
	require.Contains(t, string(args), "--health-image=kubelab.local/host/")
	require.Contains(t, string(args), "--kubeconfig="+filepath.Join(m.dir, "kubelab", "there", "kubeconfig"))

	// A cluster that ends is started again.
	require.NoError(t, syscall.Kill(clusters["here"], syscall.SIGKILL))
	first.says("Kubernetes here is back")
	m.healthy()

	// A killed dev leaves its clusters running. The next dev brings back the same clusters, although it has
	// no flags for them.
	first.signal(syscall.SIGKILL)
	require.Len(t, m.status().Left, 9)
	second := m.up()
	again := m.healthy()
	requireGone(t, clusters["there"])
	require.Equal(t, s.Networks, again.Networks)
	require.Equal(t, s.Groups, again.Groups)
	second.signal(syscall.SIGTERM)
	require.Zero(t, second.cmd.ProcessState.ExitCode())
	requireGone(t, pids(again)...)

	// The regions are this host again. The data of the clusters is kept.
	third := m.up("--runtime", "process")
	require.Len(t, m.healthy().Processes, 7)
	require.DirExists(t, filepath.Join(m.dir, "kubelab", "here"))
	third.signal(syscall.SIGTERM)
}

func TestCluster_FlagsReachADetachedDev(t *testing.T) {
	m := setupClusters(t)
	out, err := m.command("--detach", "--runtime", "kubernetes", "--regions", "here", "--group", "name=a,gpu=nvidia.com/gpu=1", "--group", "name=b").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "KUBECONFIG=")
	require.Equal(t, []string{"name=a,gpu=nvidia.com/gpu=1", "name=b"}, m.healthy().Groups)
	table, err := m.command("status").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(table), "kubelab/here")
	require.Contains(t, string(table), "KUBECONFIG="+filepath.Join(m.dir, "kubelab", "here", "kubeconfig"))
}

func TestCluster_FailedStartSaysWhy(t *testing.T) {
	m := setupClusters(t)
	path := filepath.Join(t.TempDir(), "kubelab")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho 'kubelab: --group: gpu: no such thing' >&2\nexit 1\n"), 0o700))
	m.env = append(m.env, kubelab.EnvProgram+"="+path)
	out, err := m.command("--runtime", "kubernetes", "--regions", "here").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "start kubelab: it ended (exit status 1): kubelab: --group: gpu: no such thing")
	require.Eventually(t, func() bool { return !m.status().Running }, patience, 50*time.Millisecond)
	require.Empty(t, m.status().Left)
}

func TestClusterOptions_ErrorNamesTheOption(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--runtime", "docker"}, `--runtime: "docker" is neither process nor kubernetes`},
		{[]string{"--runtime", "process", "--nodes", "3"}, "add --runtime kubernetes"},
		{[]string{"--nodes", "3"}, "add --runtime kubernetes"},
		{[]string{"--runtime", "kubernetes", "--nodes", "-1"}, "--nodes: -1 is not a number from 1 to 1000"},
		{[]string{"--runtime", "kubernetes", "--nodes", "3", "--group", "name=a"}, "leave out --nodes and --gpus, or --group"},
		{[]string{"--runtime", "kubernetes", "--group", "nodes=3"}, "begin with name=NAME"},
		{[]string{"--runtime", "kubernetes", "--group", "name=a", "--group", "name=a"}, "two groups of name a"},
	} {
		m := setup(t)
		out, err := m.command(c.args...).CombinedOutput()
		require.Error(t, err, c.args)
		require.Contains(t, string(out), c.want)
	}
}
