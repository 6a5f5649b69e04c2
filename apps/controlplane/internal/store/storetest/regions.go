package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	connected   = windlassv1.RegionStatus_REGION_STATUS_CONNECTED
	unreachable = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE
	hour        = int64(3_600_000)
)

func testRegions(t *testing.T, setup setup) {
	names := func(regions []model.Region) []string {
		var out []string
		for _, r := range regions {
			out = append(out, r.Name)
		}
		return out
	}
	own := func(w *fixture, workspaceID, name string) model.Region {
		r := model.Region{ID: ident.New("reg"), WorkspaceID: workspaceID, Name: name, CreatedAt: now, ResourceVersion: 1}
		w.update(func(tx store.Tx) error { return tx.InsertRegion(r) })
		return r
	}

	t.Run("a new region has a head at revision 0 of epoch 1", func(t *testing.T) {
		w := setup(t)
		id := w.newRegion("eu")
		require.Equal(t, model.Head{RegionID: id, Epoch: 1, Chain: changefeed.Genesis()}, w.headOf(id))
		require.Equal(t, changefeed.Genesis(), read(w, func(tx store.Tx) ([]byte, error) { return tx.ChainAt(id, 0) }))
	})

	t.Run("gateways of workspaces' regions wait until their address is approved", func(t *testing.T) {
		w := setup(t)
		for _, r := range []model.Region{
			{ID: "reg_1", WorkspaceID: w.ws, Name: "waits", GatewayURL: "https://a"},
			{ID: "reg_2", WorkspaceID: w.ws, Name: "approved", GatewayURL: "https://b", ApprovedGatewayURL: "https://b"},
			{ID: "reg_3", WorkspaceID: "ws_2", Name: "moved", GatewayURL: "https://d", ApprovedGatewayURL: "https://c"},
			{ID: "reg_4", WorkspaceID: w.ws, Name: "none"},
			{ID: "reg_5", Name: "platform", GatewayURL: "https://e"},
		} {
			w.update(func(tx store.Tx) error {
				if err := tx.InsertRegion(model.Region{ID: r.ID, WorkspaceID: r.WorkspaceID, Name: r.Name, ResourceVersion: 1}); err != nil {
					return err
				}
				_, _, err := tx.StartSession(r.ID, "session", hour, model.Region{GatewayURL: r.GatewayURL})
				if err != nil || r.ApprovedGatewayURL == "" {
					return err
				}
				stored, err := tx.LockRegion(r.ID)
				if err != nil {
					return err
				}
				stored.ApprovedGatewayURL = r.ApprovedGatewayURL
				return tx.UpdateRegion(stored)
			})
		}
		list := func(waiting bool, p store.Page) []string {
			return names(read(w, func(tx store.Tx) ([]model.Region, error) { return tx.ListGateways(waiting, p) }))
		}
		require.Equal(t, []string{"waits", "approved", "moved"}, list(false, store.Page{Limit: 9}))
		require.Equal(t, []string{"waits", "moved"}, list(true, store.Page{Limit: 9}))
		require.Equal(t, []string{"moved"}, list(true, store.Page{Limit: 9, After: "reg_1"}))
	})

	t.Run("a workspace sees its own regions and those that it was granted", func(t *testing.T) {
		w := setup(t)
		shared, hidden := w.newRegion("shared"), w.newRegion("hidden")
		mine, theirs := own(w, w.ws, "mine"), own(w, "ws_2", "theirs")
		find := func(ws, name string) func(store.Tx) (model.Region, error) {
			return func(tx store.Tx) (model.Region, error) { return tx.GetRegionByName(ws, name) }
		}
		list := func(ws string) []string {
			return names(read(w, func(tx store.Tx) ([]model.Region, error) { return tx.ListRegions(ws, store.Page{Limit: 9}) }))
		}
		requireMissing(w, find(w.ws, "shared"))
		w.update(func(tx store.Tx) error { return tx.GrantRegion(shared, w.ws, now) })
		w.update(func(tx store.Tx) error { return tx.GrantRegion(shared, w.ws, now+1) })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.GrantRegion("reg_x", w.ws, now) })
		require.Equal(t, shared, read(w, find(w.ws, "shared")).ID)
		require.Equal(t, mine.ID, read(w, find(w.ws, "mine")).ID)
		requireMissing(w, find(w.ws, "hidden"))
		requireMissing(w, find(w.ws, "theirs"))
		require.Equal(t, theirs.ID, read(w, find("ws_2", "theirs")).ID)
		require.Equal(t, []string{"mine", "shared"}, list(w.ws))
		require.Equal(t, []string{"theirs"}, list("ws_2"))

		require.Equal(t, hidden, read(w, find("", "hidden")).ID, "the platform finds its own")
		requireMissing(w, find("", "mine"))
		require.Equal(t, []string{"hidden", "shared"}, list(""))

		require.Equal(t, []string{w.ws}, read(w, func(tx store.Tx) ([]string, error) { return tx.RegionWorkspaces(shared) }))
		w.update(func(tx store.Tx) error { return tx.RevokeGrant(shared, w.ws) })
		requireMissing(w, find(w.ws, "shared"))
		require.Equal(t, []string{"mine"}, list(w.ws))
		require.Empty(t, read(w, func(tx store.Tx) ([]string, error) { return tx.RegionWorkspaces(shared) }))
	})

	t.Run("a workspace's own region hides a granted one of the same name", func(t *testing.T) {
		w := setup(t)
		shared, mine := w.newRegion("eu"), own(w, w.ws, "eu")
		w.update(func(tx store.Tx) error { return tx.GrantRegion(shared, w.ws, now) })
		require.Equal(t, mine.ID, read(w, func(tx store.Tx) (model.Region, error) { return tx.GetRegionByName(w.ws, "eu") }).ID)
		us := own(w, w.ws, "us")
		require.Equal(t, []model.Region{mine, us}, read(w, func(tx store.Tx) ([]model.Region, error) {
			return tx.GetRegionsByName(w.ws, []string{"us", "eu", "nowhere", "us"})
		}))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Region, error) { return tx.GetRegionsByName("ws_2", []string{"us", "eu"}) }))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Region, error) { return tx.GetRegionsByName(w.ws, nil) }))
		w.update(func(tx store.Tx) error { return tx.DeleteRegion(us.ID) })
		require.Equal(t, []model.Region{mine}, read(w, func(tx store.Tx) ([]model.Region, error) { return tx.ListRegions(w.ws, store.Page{Limit: 9}) }))
		w.requireFails(model.ErrExists, func(tx store.Tx) error {
			return tx.InsertRegion(model.Region{ID: ident.New("reg"), WorkspaceID: w.ws, Name: "eu"})
		})
	})

	t.Run("an update changes labels, message, credentials and approval only", func(t *testing.T) {
		w := setup(t)
		id := w.newRegion("eu")
		before := read(w, func(tx store.Tx) (model.Region, error) { return tx.GetRegion(id) })
		changed := filledRow[model.Region]()
		changed.ID, changed.ResourceVersion = id, 1
		w.update(func(tx store.Tx) error { return tx.UpdateRegion(changed) })
		want := before
		want.Labels, want.Message, want.CredentialNotBefore = changed.Labels, changed.Message, changed.CredentialNotBefore
		want.ApprovedGatewayURL = changed.ApprovedGatewayURL
		want.UpdatedAt, want.ResourceVersion = changed.UpdatedAt, 2
		require.Equal(t, want, read(w, func(tx store.Tx) (model.Region, error) { return tx.GetRegion(id) }))
	})

	t.Run("regions are fetched by id and walked by id", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(3)
		got := map[string]bool{}
		for _, r := range read(w, func(tx store.Tx) ([]model.Region, error) {
			return tx.GetRegions([]string{ids[2], "reg_x", ids[0], ids[0]})
		}) {
			got[r.ID] = true
		}
		require.Equal(t, map[string]bool{ids[0]: true, ids[2]: true}, got)
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Region, error) { return tx.GetRegions(nil) }))
		all := read(w, func(tx store.Tx) ([]model.Region, error) { return tx.AllRegions(store.Page{After: ids[0], Limit: 9}) })
		var walked []string
		for _, r := range all {
			walked = append(walked, r.ID)
		}
		require.Equal(t, ids[1:], walked)
		heads := read(w, func(tx store.Tx) ([]model.Head, error) { return tx.ListRegionHeads(ids[0], 1) })
		require.Len(t, heads, 1)
		require.Equal(t, ids[1], heads[0].RegionID)
		require.Len(t, read(w, func(tx store.Tx) ([]model.Head, error) { return tx.ListRegionHeads("", 9) }), 3)
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Head, error) { return tx.GetHeads(nil) }))
	})

	t.Run("a deleted region takes its feed grants tokens and quarantine with it", func(t *testing.T) {
		w := setup(t)
		id := w.newRegion("eu")
		token := model.JoinToken{ID: "jt_1", RegionID: id, Hash: []byte("hash"), CreatedAt: now, ExpiresAt: now + hour}
		w.update(func(tx store.Tx) error {
			require.NoError(t, tx.GrantRegion(id, w.ws, now))
			require.NoError(t, tx.InsertJoinToken(token))
			tx.Change(id, model.KindDeployment, "dep_x", 1)
			return tx.SetQuarantine(id, []model.Quarantined{{RegionID: id, Key: "dep_q", Since: now}})
		})
		w.update(func(tx store.Tx) error { return tx.DeleteRegion(id) })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.DeleteRegion(id) })
		requireMissing(w, func(tx store.Tx) (model.Region, error) { return tx.GetRegion(id) })
		requireMissing(w, func(tx store.Tx) (model.Head, error) { return tx.GetHead(id) })
		requireMissing(w, func(tx store.Tx) (model.JoinToken, error) { return tx.GetJoinTokenByHash(token.Hash) })
		require.Empty(t, w.readFeed(id))
		require.Empty(t, read(w, func(tx store.Tx) ([]string, error) { return tx.RegionWorkspaces(id) }))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Quarantined, error) { return tx.ListQuarantine(id, store.Page{Limit: 9}) }))
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { tx.Change(id, model.KindDeployment, "dep_x", 1); return nil })
		require.NotEmpty(t, w.newRegion("eu"), "its name is free")
	})

	t.Run("a join token is used by one agent, which may use it again", func(t *testing.T) {
		w := setup(t)
		token := model.JoinToken{ID: "jt_1", RegionID: w.newRegion("eu"), Hash: []byte("hash"), CreatedAt: now, ExpiresAt: now + hour}
		w.update(func(tx store.Tx) error { return tx.InsertJoinToken(token) })
		again := token
		again.ID = "jt_2"
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertJoinToken(again) })
		use := func(agent string, at int64) func(store.Tx) error {
			return func(tx store.Tx) error { return tx.UseJoinToken(token.ID, agent, at) }
		}
		agents := []string{"a", "b", "c", "d", "e", "f"}
		oneWins(t, w.runUpdates(len(agents), func(i int, tx store.Tx) error { return use(agents[i], now+1)(tx) }), model.ErrConflict)
		got := read(w, func(tx store.Tx) (model.JoinToken, error) { return tx.GetJoinTokenByHash(token.Hash) })
		require.Equal(t, now+1, got.UsedAt)
		w.update(use(got.UsedBy, now+2))
		w.requireFails(model.ErrConflict, use("another", now+3))
		require.Equal(t, got, read(w, func(tx store.Tx) (model.JoinToken, error) { return tx.GetJoinTokenByHash(token.Hash) }),
			"the first use stands")
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.UseJoinToken("jt_x", "a", now) })
	})
}

func testSessions(t *testing.T, setup setup) {
	start := func(w *fixture, region, session string, ttl int64) (model.Region, bool) {
		w.t.Helper()
		var r model.Region
		var resumed bool
		w.update(func(tx store.Tx) (err error) {
			r, resumed, err = tx.StartSession(region, session, ttl, model.Region{
				AgentVersion: "1.2.3", AgentRuntime: "process", AgentFeatures: []string{"a", "b"}, GatewayURL: "http://gw",
			})
			return err
		})
		return r, resumed
	}
	get := func(w *fixture, region string) model.Region {
		w.t.Helper()
		return read(w, func(tx store.Tx) (model.Region, error) { return tx.GetRegion(region) })
	}

	t.Run("the same session resumes and another raises the fence", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		first, resumed := start(w, region, "s1", hour)
		require.False(t, resumed)
		require.Equal(t, connected, first.Status)
		require.Equal(t, "s1", first.SessionID)
		require.Equal(t, []string{"a", "b"}, first.AgentFeatures)
		require.Equal(t, "1.2.3 process http://gw", first.AgentVersion+" "+first.AgentRuntime+" "+first.GatewayURL)
		require.EqualValues(t, 1, first.SessionEpoch)
		require.Equal(t, first, get(w, region))

		again, resumed := start(w, region, "s1", hour)
		require.True(t, resumed)
		require.Equal(t, first.SessionFence, again.SessionFence)

		second, resumed := start(w, region, "s2", hour)
		require.False(t, resumed)
		require.Equal(t, first.SessionFence+1, second.SessionFence)

		back, resumed := start(w, region, "s1", hour)
		require.False(t, resumed, "a session that was replaced does not resume")
		require.Equal(t, first.SessionFence+2, back.SessionFence)
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error {
			_, _, err := tx.StartSession("reg_x", "s", hour, model.Region{})
			return err
		})
	})

	t.Run("a session has the epoch of the head", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		w.update(func(tx store.Tx) error {
			h, err := tx.BumpEpoch(region, []byte("salt"))
			if err != nil {
				return err
			}
			r, _, err := tx.StartSession(region, "s1", hour, model.Region{})
			require.Equal(t, h.Epoch, r.SessionEpoch)
			return err
		})
		require.EqualValues(t, 2, get(w, region).SessionEpoch)
	})

	t.Run("sessions that start at once have different fences", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		fences := make([]int64, 8)
		for _, err := range w.runUpdates(len(fences), func(i int, tx store.Tx) error {
			r, _, err := tx.StartSession(region, ident.New("ses"), hour, model.Region{})
			fences[i] = r.SessionFence
			return err
		}) {
			require.NoError(t, err)
		}
		seen := map[int64]bool{}
		for _, f := range fences {
			seen[f] = true
		}
		require.Len(t, seen, len(fences))
		require.EqualValues(t, len(fences), get(w, region).SessionFence)
	})

	t.Run("only reports of current sessions are stored", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(2)
		for _, id := range ids {
			start(w, id, "s1", hour)
		}
		said := func(of model.Region, sequence, received, at int64, capacity []byte) {
			of.SessionSequence, of.ReceivedRevision, of.LastReportAt, of.Capacity = sequence, received, at, capacity
			w.update(func(tx store.Tx) error {
				return tx.NoteReports([]model.Region{of, {ID: "reg_x", SessionID: "s1"}}, hour)
			})
		}
		note := func(of model.Region, received int64, capacity []byte) { said(of, 0, received, now+received, capacity) }
		s1 := get(w, ids[0])
		note(s1, 7, []byte{1, 0, 2})
		got := get(w, ids[0])
		require.EqualValues(t, 7, got.ReceivedRevision)
		require.Equal(t, now+7, got.LastReportAt)
		require.Equal(t, []byte{1, 0, 2}, got.Capacity)
		note(s1, 8, nil)
		require.Equal(t, []byte{1, 0, 2}, get(w, ids[0]).Capacity, "no capacity: unchanged")
		require.EqualValues(t, 8, get(w, ids[0]).ReceivedRevision)

		said(s1, 5, 9, now+9, []byte{2})
		said(s1, 4, 8, now+10, []byte{1})
		got = get(w, ids[0])
		require.EqualValues(t, 5, got.SessionSequence)
		require.EqualValues(t, 9, got.ReceivedRevision, "what a late report received is outdated")
		require.Equal(t, []byte{2}, got.Capacity, "and so is what it counted")
		require.Equal(t, now+10, got.LastReportAt, "but the region lives")

		start(w, ids[0], "s2", hour)
		before := get(w, ids[0])
		note(s1, 99, []byte("stale"))
		require.Equal(t, before, get(w, ids[0]), "a stale session's report changes nothing")
		start(w, ids[0], "s1", hour)
		before = get(w, ids[0])
		said(s1, 99, 99, now, []byte("stale"))
		require.Equal(t, before, get(w, ids[0]), "not even when its agent came back between: sequences begin anew")
		for _, other := range []func(*model.Region){func(r *model.Region) { r.SessionID = "s2" }, func(r *model.Region) { r.SessionEpoch++ }} {
			stale := before
			other(&stale)
			said(stale, 99, 99, now, nil)
			require.Equal(t, before, get(w, ids[0]))
		}
		start(w, ids[0], "s2", hour)
		require.Zero(t, get(w, ids[1]).LastReportAt)
		requireMissing(w, func(tx store.Tx) (model.Region, error) { return tx.GetRegion("reg_x") })

		got2 := map[string]string{}
		for _, r := range read(w, func(tx store.Tx) ([]model.Region, error) { return tx.CheckSessions([]string{ids[0], ids[1], "reg_x"}) }) {
			got2[r.ID] = r.SessionID
		}
		require.Equal(t, map[string]string{ids[0]: "s2", ids[1]: "s1"}, got2)
	})

	t.Run("a lease that is over makes the region unreachable once and a report brings it back", func(t *testing.T) {
		w := setup(t)
		late, live, never := w.newRegion("late"), w.newRegion("live"), w.newRegion("never")
		start(w, late, "s1", -hour)
		start(w, live, "s1", hour)
		expire := func() []string {
			return write(w, func(tx store.Tx) ([]string, error) { return tx.ExpireLeases(now, 10) })
		}
		require.Equal(t, []string{late}, expire())
		require.Equal(t, unreachable, get(w, late).Status)
		require.Equal(t, connected, get(w, live).Status)
		require.Equal(t, windlassv1.RegionStatus_REGION_STATUS_PENDING, get(w, never).Status)
		require.Equal(t, map[windlassv1.RegionStatus]int{unreachable: 1, connected: 1, windlassv1.RegionStatus_REGION_STATUS_PENDING: 1},
			read(w, store.Tx.CountRegions))
		require.Empty(t, expire())

		session := get(w, late)
		w.update(func(tx store.Tx) error { return tx.NoteReports([]model.Region{session}, hour) })
		require.Equal(t, connected, get(w, late).Status)
		require.Empty(t, expire())
	})

	t.Run("leases expire up to the limit at a time", func(t *testing.T) {
		w := setup(t)
		for _, id := range w.newRegions(3) {
			start(w, id, "s", -hour)
		}
		var n []int
		for range 3 {
			n = append(n, len(write(w, func(tx store.Tx) ([]string, error) { return tx.ExpireLeases(now, 2) })))
		}
		require.Equal(t, []int{2, 1, 0}, n)
	})

	t.Run("a report renews a lease before it is over", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		start(w, region, "s1", -hour)
		session := get(w, region)
		w.update(func(tx store.Tx) error { return tx.NoteReports([]model.Region{session}, hour) })
		require.Empty(t, write(w, func(tx store.Tx) ([]string, error) { return tx.ExpireLeases(now, 10) }))
	})
}

func testQuarantine(t *testing.T, setup setup) {
	t.Run("a set of quarantined workloads replaces the previous set and keeps the approvals of keys that stay", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(2)
		row := func(region, key string, generation int64) model.Quarantined {
			return model.Quarantined{RegionID: region, Key: key, Generation: generation, Instances: 2, Since: now}
		}
		put := func(region string, rows ...model.Quarantined) {
			w.update(func(tx store.Tx) error { return tx.SetQuarantine(region, rows) })
		}
		list := func(region string) []model.Quarantined {
			return read(w, func(tx store.Tx) ([]model.Quarantined, error) { return tx.ListQuarantine(region, store.Page{Limit: 9}) })
		}
		put(ids[0], row(ids[0], "dep_b", 1), row(ids[0], "dep_a", 1), row(ids[0], "dep_c", 1))
		put(ids[1], row(ids[1], "dep_a", 1))
		require.Equal(t, []model.Quarantined{row(ids[0], "dep_a", 1), row(ids[0], "dep_b", 1), row(ids[0], "dep_c", 1)}, list(ids[0]))
		require.Equal(t, map[string]int{ids[0]: 3, ids[1]: 1}, read(w, func(tx store.Tx) (map[string]int, error) { return tx.CountQuarantine(ids) }))
		require.Equal(t, map[string]int{ids[1]: 1}, read(w, func(tx store.Tx) (map[string]int, error) { return tx.CountQuarantine(ids[1:]) }))
		require.Empty(t, read(w, func(tx store.Tx) (map[string]int, error) { return tx.CountQuarantine(nil) }))

		approved := write(w, func(tx store.Tx) ([]model.Quarantined, error) {
			return tx.ApproveQuarantine(ids[0], []string{"dep_b", "dep_x", "dep_c"}, now+5)
		})
		b, c := row(ids[0], "dep_b", 1), row(ids[0], "dep_c", 1)
		b.ApprovedAt, c.ApprovedAt = now+5, now+5
		require.ElementsMatch(t, []model.Quarantined{b, c}, approved)

		put(ids[0], row(ids[0], "dep_b", 3), row(ids[0], "dep_d", 1))
		b.Generation = 3
		require.Equal(t, []model.Quarantined{b, row(ids[0], "dep_d", 1)}, list(ids[0]))
		put(ids[0])
		require.Empty(t, list(ids[0]))
		require.Len(t, list(ids[1]), 1)
		put(ids[0], row(ids[0], "dep_b", 3))
		require.Zero(t, list(ids[0])[0].ApprovedAt, "an approval is for the workload that was there")
		require.Empty(t, write(w, func(tx store.Tx) ([]model.Quarantined, error) { return tx.ApproveQuarantine(ids[0], nil, now) }))
	})
}
