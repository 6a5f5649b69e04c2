package ingest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// FuzzReport passes arbitrary reports of the region's current session to ingest. A report must be stored completely,
// within the limits, or be refused completely as invalid. It must change nothing of another region, and count once if
// it is repeated.
func FuzzReport(f *testing.F) {
	for _, req := range []*agentv1.ReportRequest{
		says(1),
		says(1, has("dep_1", ready, "ins_1"), counts("dep_1", 1), applied("dep_1"), inventory(1)),
		says(7, has("dep_2", ready, "ins_2"), counts("dep_2", 1), applied("dep_2"), inventory(3)),
		says(2, has("dep_1", 77, "", "ins_1", "ins_1"), func(r *agentv1.ReportRequest) {
			r.QuarantineComplete = true
			r.Quarantined = []*agentv1.QuarantinedKey{{Key: "dep_8"}, {Key: "dep_8"}}
			r.Capacity = &agentv1.Capacity{CpuMillicores: -1}
			r.Notices = []*agentv1.Notice{{Kind: agentv1.Notice_KIND_DRIFT, DeploymentId: "dep_1", Object: "o", Message: "m", Times: 2, At: 1}, {Kind: 9, DeploymentId: "dep_2", Times: -1}}
			r.Applied = []*agentv1.AppliedState{{Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: "app_1"}, {Kind: 9, Key: "app_2"}}
		}),
	} {
		data, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, data := range recorded(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		req := &agentv1.ReportRequest{}
		if proto.Unmarshal(data, req) != nil {
			return
		}
		// Reports that the schema's rules refuse do not reach ingest.
		if req.Sequence <= 0 || req.Sequence >= 1<<40 {
			return
		}
		h := setup(t)
		defer h.stop()
		west := read(h, func(tx store.Tx) (model.Region, error) { return tx.GetRegion(west) })
		req.SessionId, req.Epoch, req.Fence, req.PreviousSequence = "session-1", 1, 1, 0
		hung := time.AfterFunc(10*time.Second, func() { panic("a report hangs") })
		defer hung.Stop()

		first := h.report(east, req)
		if first != nil && connect.CodeOf(first) != connect.CodeInvalidArgument {
			t.Fatalf("refused: %v", first)
		}
		kept := h.kept()
		checkSession(t, kept, req)
		if first != nil && len(kept.instances)+len(kept.observed)+len(kept.routes)+len(kept.history)+len(kept.quarantine) > 0 {
			t.Fatalf("refused (%v), and stored %+v", first, kept)
		}
		if now := read(h, func(tx store.Tx) (model.Region, error) { return tx.GetRegion(west.ID) }); now.SessionFence != west.SessionFence || now.LeaseExpiresAt != west.LeaseExpiresAt || len(now.Capacity) > 0 {
			t.Fatalf("another region changed: %+v", now)
		}

		// The answer was lost, and the agent repeats the report.
		if again := h.report(east, req); connect.CodeOf(again) != connect.CodeOf(first) {
			t.Fatalf("%v at first, and %v when it came again", first, again)
		}
		if again := h.kept(); !reflect.DeepEqual(kept, again) {
			t.Fatalf("%+v was stored, and %+v when it came again", kept, again)
		}
	})
}

// keptRows has all rows that reports of the east can change, except its session.
type keptRows struct {
	instances  []model.Instance
	observed   []model.Observed
	routes     []model.RouteObserved
	history    []model.History
	quarantine []string
	capacity   int
}

func (h *harness) kept() (k keptRows) {
	page := model.Page{Limit: 1000}
	err := h.db.View(context.Background(), func(tx store.Tx) (err error) {
		apps := []string{"app_1", "app_2"}
		if k.instances, err = tx.ListInstances(model.InstanceFilter{IncludeTerminated: true}, page); err != nil {
			return err
		}
		if k.observed, err = tx.ListObserved(apps); err != nil {
			return err
		}
		if k.routes, err = tx.ListRouteObserved(apps); err != nil {
			return err
		}
		for n, app := range apps {
			history, err := tx.ListHistory(fmt.Sprintf("ws_%d", n+1), app, page)
			if err != nil {
				return err
			}
			k.history = append(k.history, history...)
		}
		for _, region := range []string{east, west} {
			rows, err := tx.ListQuarantine(region, page)
			if err != nil {
				return err
			}
			for _, q := range rows {
				k.quarantine = append(k.quarantine, q.RegionID+"/"+q.Key)
			}
		}
		region, err := tx.GetRegion(east)
		k.capacity = len(region.Capacity)
		return err
	})
	require.NoError(h.t, err)
	return k
}

// checkSession requires that no row belongs to another region, and that all texts fit their columns.
func checkSession(t *testing.T, k keptRows, req *agentv1.ReportRequest) {
	text := func(of any, s string, most int) {
		if len(s) > most || !utf8.ValidString(s) {
			t.Fatalf("stored %d bytes in a column of %d: %+v", len(s), most, of)
		}
	}
	for _, i := range k.instances {
		if i.RegionID != east || i.DeploymentID != "dep_1" || i.ID == "" || len(i.GPUs) > 64 {
			t.Fatalf("stored %+v", i)
		}
		text(i, i.ID, 64)
		text(i, i.Reason, 64)
		text(i, i.Message, 1024)
		text(i, i.Role, 255)
		text(i, i.Address, 255)
		text(i, i.RuntimeName, 255)
		for _, g := range i.GPUs {
			text(i, g, 64)
		}
	}
	for _, o := range k.observed {
		if o.DeploymentID != "dep_1" || o.RegionID != east || min(o.Pending, o.Running, o.Ready, o.Draining, o.Fail, o.ReadyReplicas, o.Doomed, o.Restarts) < 0 {
			t.Fatalf("stored %+v", o)
		}
		text(o, o.Code, 64)
		text(o, o.Message, 1024)
		text(o, o.Reason, 64)
		text(o, o.ReasonMessage, 1024)
	}
	for _, o := range k.routes {
		if o.AppID != "app_1" || o.RegionID != east {
			t.Fatalf("stored %+v", o)
		}
		text(o, o.Code, 64)
		text(o, o.Message, 1024)
	}
	if len(k.history) > len(req.Notices) {
		t.Fatalf("%d notices made %d entries", len(req.Notices), len(k.history))
	}
	for _, n := range k.history {
		if n.DeploymentID != "dep_1" || n.AppID != "app_1" || n.RegionID != east || n.At <= 0 {
			t.Fatalf("stored %+v", n)
		}
		text(n, n.Why, 1024)
	}
	seen := map[string]bool{}
	for _, q := range k.quarantine {
		if seen[q] || !strings.HasPrefix(q, east+"/") {
			t.Fatalf("stored %v", k.quarantine)
		}
		seen[q] = true
		text(q, q, len(east)+1+64)
	}
	if k.capacity > 64<<10 {
		t.Fatalf("stored %d bytes of capacity", k.capacity)
	}
}

// recorded returns recorded reports of real agents.
func recorded(f *testing.F) (out [][]byte) {
	file, err := os.Open("testdata/recorded/reports-1.binpb")
	if err != nil {
		f.Fatal(err)
	}
	defer file.Close()
	in := bufio.NewReader(file)
	for {
		req := &agentv1.ReportRequest{}
		switch err := protodelim.UnmarshalFrom(in, req); {
		case errors.Is(err, io.EOF):
			return out
		case err != nil:
			f.Fatal(err)
		}
		data, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		out = append(out, data)
	}
}
