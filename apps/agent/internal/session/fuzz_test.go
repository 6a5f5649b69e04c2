package session

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/report"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// stream encodes frames as the fuzzer cuts them: each after its length.
func stream(f *testing.F, frames ...*agentv1.WatchResponse) []byte {
	var out []byte
	for _, frame := range frames {
		data, err := proto.Marshal(frame)
		if err != nil {
			f.Fatal(err)
		}
		out = append(append(out, byte(len(data)>>8), byte(len(data))), data...)
	}
	return out
}

// FuzzWatchFrames gives a session whatever decodes as frames. None may end the
// agent; and whatever happens, the inbox found again after a crash is the inbox
// that was, and no key goes back in (epoch, generation).
func FuzzWatchFrames(f *testing.F) {
	f.Add(stream(f, append([]*agentv1.WatchResponse{hello()}, snapshot(5, item("dep_1"), item("dep_2"))...)...))
	f.Add(stream(f, append(append([]*agentv1.WatchResponse{hello()}, snapshot(5, item("dep_1"))...), delta(5, 6), delta(7, 8))...))
	f.Add(stream(f, append(snapshot(5), hello())...))
	torn := snapshot(5, item("dep_1"))
	f.Add(stream(f, hello(), torn[0], delta(0, 3), torn[1], torn[1], torn[2]))
	f.Add(stream(f, hello(),
		&agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Bookmark{Bookmark: &agentv1.Bookmark{Digest: 4}}},
		&agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Request{Request: &agentv1.Request{Id: "req_1", Kind: &agentv1.Request_Logs{Logs: &agentv1.LogsRequest{InstanceId: "ins_1"}}}}},
		&agentv1.WatchResponse{Frame: &agentv1.WatchResponse_GoAway{GoAway: &agentv1.GoAway{}}}))

	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "inbox.db")
		in, err := inbox.Open(path, true)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(Config{
			Client: silentClient{}, Credentials: &Credentials{}, Inbox: in, Reporter: quietReporter{},
			Changed: func(...inbox.Key) {}, Instances: nothing{}, Log: slog.New(slog.DiscardHandler),
			Registerer: prometheus.NewRegistry(), Rand: func() float64 { return 0 },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		fr := &frames{session: s, cancel: cancel, reporting: make(chan struct{}), slots: make(chan struct{}, maxAnswers)}
		held := map[inbox.Key]*agentv1.Item{}
		for len(data) >= 2 {
			n := min(int(data[0])<<8|int(data[1]), len(data)-2)
			msg := &agentv1.WatchResponse{}
			if proto.Unmarshal(data[2:2+n], msg) == nil && fr.handle(ctx, msg) != nil {
				break
			}
			data = data[2+n:]
			for _, it := range in.Items() {
				k := inbox.Key{Kind: it.Kind, Name: it.Key}
				if was := held[k]; was != nil && (it.Epoch < was.Epoch || it.Epoch == was.Epoch && it.Generation < was.Generation) && msg.GetSnapshotEnd() == nil {
					t.Fatalf("%v went from %v back to %v", k, was, it)
				}
				held[k] = it
			}
		}
		cancel(nil)
		if fr.reporter {
			<-fr.reporting
		}
		fr.answers.Wait()
		cursor, sums, count := in.Cursor(), in.Sums(), len(in.Items())
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if in, err = inbox.Open(path, true); err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if again := in.Cursor(); again.Epoch != cursor.Epoch || again.Revision != cursor.Revision || string(again.Chain) != string(cursor.Chain) || in.Sums() != sums || len(in.Items()) != count {
			t.Fatalf("found %v with %d items again as %v with %d", cursor, count, again, len(in.Items()))
		}
	})
}

type quietReporter struct{}

func (quietReporter) Run(ctx context.Context, _ report.Session) error {
	<-ctx.Done()
	return nil
}

func (quietReporter) Reported() int64 { return 0 }

// silentClient takes answers.
type silentClient struct{ Client }

func (silentClient) UploadLogs(context.Context, *agentv1.UploadLogsRequest) (*agentv1.UploadLogsResponse, error) {
	return &agentv1.UploadLogsResponse{}, nil
}
