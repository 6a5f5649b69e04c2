package controlplane

import (
	"io"
	"net"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestPeers_CommitReachesAStreamOfAnotherProcess(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "us", "eu")
	a, b := w.start(planeConfig{beat: never}), w.start(planeConfig{beat: never})
	agent := w.join(b, "us")
	agent.watch(b)
	acquainted(a, b)
	// The stream can only see these deployments after a nudge, because the beat never comes.
	for range 5 {
		d := w.user(a).deploy(t, "chat", "us")
		agent.assigned(d.DeploymentId)
	}
	require.Positive(t, b.metric("windlass_peer_nudges_received_total"))

	// The agent moves to process a, and the nudge goes from b to a.
	agent.watch(a)
	d := w.user(b).deploy(t, "chat", "us")
	agent.assigned(d.DeploymentId)
}

func TestPeers_WatcherSeesAnotherProcessesCommit(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "us")
	a, b := w.start(planeConfig{beat: never}), w.start(planeConfig{beat: never})
	acquainted(a, b)
	first := w.user(a).deploy(t, "chat", "us")
	stream, err := w.user(b).apps.WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: first.AppId})
	require.NoError(t, err)
	require.True(t, stream.Receive(), stream.Err())
	begin := time.Now()
	const changes = 10
	for range changes {
		d := w.user(a).deploy(t, "chat", "us")
		for stream.Msg().App.LatestVersion < d.Version {
			require.True(t, stream.Receive(), stream.Err())
		}
	}
	// Without a nudge, WatchApp reads an app again after 2 s.
	require.Less(t, time.Since(begin), changes*2*time.Second)
	require.NoError(t, stream.Close())
}

func TestPeers_HangingPeerDelaysNoOtherPeer(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "us")
	w.peerRow(ident.New("cp"), hang(t))
	a, b := w.start(planeConfig{beat: never}), w.start(planeConfig{beat: never})
	agent := w.join(b, "us")
	agent.watch(b)
	for _, p := range []*plane{a, b} {
		p.waitFor("windlass_peers", 2)
	}
	for range 5 {
		d := w.user(a).deploy(t, "chat", "us")
		agent.assigned(d.DeploymentId)
	}
}

// hang listens, accepts calls and never answers. It returns its address.
func hang(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

func TestPeers_LostNudgeIsCaughtByTheBeat(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "us")
	// Nothing listens at the address that process b advertises.
	a, b := w.start(planeConfig{beat: never}), w.start(planeConfig{beat: 50 * time.Millisecond, deaf: true})
	agent := w.join(b, "us")
	agent.watch(b)
	acquainted(a, b)
	d := w.user(a).deploy(t, "chat", "us")
	agent.assigned(d.DeploymentId)
	require.Zero(t, b.metric("windlass_peer_nudges_received_total"))
	require.Zero(t, a.metric("windlass_peer_nudges_total", "outcome=ok"))
}

func TestPeers_AgentIsAskedThroughItsProcess(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "us")
	a, b := w.start(planeConfig{}), w.start(planeConfig{})
	agent := w.join(b, "us")
	agent.watch(b)
	acquainted(a, b)
	d := w.user(a).deploy(t, "chat", "us")
	agent.assigned(d.DeploymentId)
	agent.runs("ins_1", d.DeploymentId)

	type result struct {
		res *windlassv1.GetLogsResponse
		err error
	}
	logs := func(p *plane) chan result {
		got := make(chan result, 1)
		go func() {
			res, err := w.user(p).deployments.GetLogs(t.Context(), &windlassv1.GetLogsRequest{Instance: "ins_1", TailLines: 7})
			got <- result{res, err}
		}()
		return got
	}
	for _, p := range []*plane{a, b} {
		got := logs(p)
		req := agent.answer("hello from "+p.address, "")
		require.Equal(t, "ins_1", req.GetLogs().InstanceId)
		require.EqualValues(t, 7, req.GetLogs().TailLines)
		r := <-got
		require.NoError(t, r.err)
		require.Equal(t, "hello from "+p.address, string(r.res.Data))
	}
	// The caller gets the agent's error text.
	got := logs(a)
	agent.answer("", "no such instance")
	r := <-got
	require.Equal(t, connect.CodeFailedPrecondition, connect.CodeOf(r.err))
	require.ErrorContains(t, r.err, "no such instance")

	// The agent moves to process a, and the next request goes there.
	agent.watch(a)
	got = logs(b)
	agent.answer("moved", "")
	require.NoError(t, (<-got).err)

	// The agent leaves, and the process that had its stream answers at once.
	agent.leave()
	require.Eventually(t, func() bool { return !a.core.dispatch.Connected(agent.region) }, patience, 5*time.Millisecond)
	begin := time.Now()
	r = <-logs(b)
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(r.err))
	require.Less(t, time.Since(begin), 5*time.Second, "the answer comes at once")
}

func TestPeers_SupersededRolloutsAreCounted(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "us")
	a := w.start(planeConfig{})
	for range 4 {
		w.user(a).deploy(t, "chat", "us")
	}
	require.EqualValues(t, 3, a.metric("deployment_workflow_status", "status=superseded"))
}

func TestPeers_EndedProcessIsForgotten(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "us")
	a, b, c := w.start(planeConfig{}), w.start(planeConfig{}), w.start(planeConfig{})
	acquainted(a, b, c)
	c.stop()
	acquainted(a, b)
	w.write(func(tx store.Tx) error {
		rows, err := tx.ListPeers(time.Hour.Milliseconds())
		require.Len(t, rows, 2, "the stopped process deleted its row")
		return err
	})
}

func TestPeers_ListenerRefusesOtherClients(t *testing.T) {
	t.Parallel()
	w := newHarness(t, "us")
	a := w.start(planeConfig{})
	other := newHarness(t, "us")
	b := other.start(planeConfig{})
	// A process of another installation, which has another keyset, has a row that names a as its peer.
	other.peerRow(a.core.peerID, a.address)
	b.waitFor("windlass_peers", 1)
	require.Eventually(t, func() bool { return b.metric("windlass_peer_nudges_total", "outcome=error") > 0 }, patience, 5*time.Millisecond)
	require.Zero(t, b.metric("windlass_peer_nudges_total", "outcome=ok"))
	require.Zero(t, a.metric("windlass_peer_nudges_received_total"))

	// The API's own listener does not serve peers.
	conn, err := net.Dial("tcp", a.url[len("http://"):])
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST /windlass.peer.v1.PeerService/Nudge HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, string(answer), "404")
}
