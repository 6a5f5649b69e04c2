package ingest_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// FuzzReport gives ingest whatever decodes as a report, under the region's current
// session: it is stored or refused as invalid, never more than is allowed, and
// nothing of another region changes.
func FuzzReport(f *testing.F) {
	for _, req := range []*agentv1.ReportRequest{
		says(1),
		says(1, has("dep_1", ready, "ins_1"), counts("dep_1", 1), applied("dep_1"), inventory(1)),
		says(7, has("dep_2", ready, "ins_2"), counts("dep_2", 1), applied("dep_2"), inventory(3)),
		says(2, has("dep_1", 77, "", "ins_1", "ins_1"), func(r *agentv1.ReportRequest) {
			r.QuarantineComplete = true
			r.Quarantined = []*agentv1.QuarantinedKey{{Key: "dep_8"}, {Key: "dep_8"}}
			r.Capacity = &agentv1.Capacity{CpuMillicores: -1}
			r.Applied = []*agentv1.AppliedState{{Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: "app_1"}, {Kind: 9, Key: "app_2"}}
		}),
	} {
		data, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		req := &agentv1.ReportRequest{}
		if proto.Unmarshal(data, req) != nil {
			t.Skip()
		}
		// What the schema's rules refuse does not get here.
		if req.Sequence <= 0 || req.Sequence >= 1<<40 {
			t.Skip()
		}
		h := setup(t)
		defer h.stop()
		other := read(h, func(tx store.Tx) (model.Region, error) { return tx.GetRegion(west) })
		req.SessionId, req.Epoch, req.Fence, req.PreviousSequence = "session-1", 1, 1, 0
		hung := time.AfterFunc(10*time.Second, func() { panic("a report hangs") })
		defer hung.Stop()
		for range 2 {
			if err := h.report(east, req); err != nil && connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Fatalf("refused: %v", err)
			}
		}
		if now := read(h, func(tx store.Tx) (model.Region, error) { return tx.GetRegion(west) }); now.SessionFence != other.SessionFence || now.LeaseExpiresAt != other.LeaseExpiresAt {
			t.Fatalf("another region changed: %+v", now)
		}
		instances := read(h, func(tx store.Tx) ([]model.Instance, error) {
			return tx.ListInstances(model.InstanceFilter{IncludeTerminated: true}, model.Page{Limit: 1000})
		})
		for _, i := range instances {
			if i.RegionID != east || i.DeploymentID != "dep_1" || i.ID == "" || len(i.ID) > 64 || len(i.Message) > 1024 || len(i.Reason) > 64 {
				t.Fatalf("stored %+v", i)
			}
		}
		for _, o := range read(h, func(tx store.Tx) ([]model.Observed, error) { return tx.ListObserved([]string{"app_1", "app_2"}) }) {
			if o.DeploymentID != "dep_1" || o.RegionID != east || o.Instances() < 0 && o.Ready < 0 {
				t.Fatalf("stored %+v", o)
			}
		}
	})
}
