package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// This file deletes rows because of their age or their number. The list below has all tables that would grow with
// use. Other tables have a row for each existing object (a region, an app, a session), which is deleted with the
// object. Rows of ended freezes and expired app keys stay. They are listed, and count against their limits, until a
// person deletes them. A call that makes a freeze also deletes freezes that ended long ago. The limits are
// model.MaxFreezes for a workspace, one freeze for each app's file, and model.MaxAppKeys for an app.
//
//	table                   kept                            why
//	region_changes          the newest 20,000 of a region   agents resume from them; an agent that is
//	                        (--keep-changes)                further behind gets a snapshot
//	deployment_topology,    24 h after a row stopped        people look at them on the next day, and
//	deployment_observed     (--keep-ended)                  the generation, if the row is added again
//	instances               24 h after the termination      people look at them on the next day
//	                        (--keep-ended)
//	apps, app_routes,       24 h after the deletion         people look at them on the next day; versions,
//	route_observed,         (--keep-ended), and while a     rollouts and history go with the app
//	app_claims, app_wake    region still has rows of it
//	deployments, rollouts   the newest 100 of an app, its   rollbacks
//	                        live and previous version, and
//	                        versions with rows in a region
//	                        (--keep-versions)
//	history                 the newest 1,000 of an app      ten entries for each version
//	                        (--keep-history)
//	secret_versions         the newest 5 of a secret        specs may name a version
//	join_tokens             24 h after the expiry           agents get the error that the token expired
//	api_keys                30 d after the end              lists show ended keys
//	browser_sessions        until the expiry                an expired session is not valid
//	used_sign_ins           until the expiry                an expired sign-in is not valid
//	members                 90 d after the last sign-in;    lists show who signed in
//	                        removed members stay
//	idempotency             24 h                            the API promises it
//	notification_deliveries 24 h after the delivery, or     people look at them, and replay dead ones
//	                        7 d after one became dead
//	scaling_loads           3 d                             people simulate policies with them
//	audit                   90 d (--audit-retention)        it shows who changed what
//
// Package peers deletes its own rows, after seconds, and rows of peer_keys after two days. Counts may exceed their
// limit by a tenth, so that a busy app is not trimmed row by row.
//
// Transactions are small, and none locks rows for which a writer of the feed waits: the rows of heads are not locked
// when changes are deleted, and stopped topology has no other writer. Only an app whose versions are trimmed waits,
// for one batch. After the first days, a day deletes about as many rows as it adds. So the database's files stop
// growing, because their space is reused, although it is not freed. The simulator's "retention" simulates days of
// this.
const (
	maintainEvery   = 10 * time.Minute
	maintainTimeout = time.Minute
	// maintainBatch is the maximum number of rows that one transaction deletes, so that it does not hold its locks
	// for long.
	maintainBatch = 1000
	// appsBatch is the batch size for apps. It is small, because one app may have a thousand rows.
	appsBatch = 10
	// idempotencyFor is how long the API promises that a repeated call gets the same answer.
	idempotencyFor = 24 * time.Hour
	// joinTokensFor is how long an agent with an expired token gets the error that the token has expired. Later, it
	// gets the error that the token is unknown.
	joinTokensFor = 24 * time.Hour
	// keysFor is how long a key is listed after it ended.
	keysFor = 30 * 24 * time.Hour
	// membersFor is how long a member is listed after its last sign-in. Sessions are shorter.
	membersFor = 90 * 24 * time.Hour
)

// Maintain deletes old rows, and checks domains again, until ctx ends. Every process may run it. The first round
// comes soon, because a process may end soon.
func (s *Service) Maintain(ctx context.Context) error {
	for wait := rand.N(s.cfg.MaintainEvery/5 + 1); ; wait = s.cfg.MaintainEvery + rand.N(s.cfg.MaintainEvery/2+1) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		if err := s.maintainAll(ctx, time.Now()); err != nil && ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "cannot delete old rows or check domains", "error", err)
		}
	}
}

func (s *Service) maintainAll(ctx context.Context, now time.Time) error {
	before := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
	var errs []error
	for _, job := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"changes", s.compactChanges},
		{"topology", s.drainInBatches("topology", maintainBatch, func(tx Tx) (int, error) { return tx.DeleteTopology(before(s.cfg.Retention), maintainBatch) })},
		// Apps come after topology, because an app is not deleted while it has topology rows.
		{"apps", s.drainInBatches("apps", appsBatch, func(tx Tx) (int, error) { return tx.DeleteApps(before(s.cfg.Retention), appsBatch) })},
		{"instances", s.drainInBatches("instances", maintainBatch, func(tx Tx) (int, error) { return tx.DeleteInstances(before(s.cfg.Retention), maintainBatch) })},
		{"versions and history", s.trimHistory},
		{"secrets", s.drainInBatches("secrets", maintainBatch, func(tx Tx) (int, error) { return tx.TrimSecrets(s.cfg.KeepSecretVersions, maintainBatch) })},
		{"join tokens", s.drainInBatches("join tokens", maintainBatch, func(tx Tx) (int, error) { return tx.DeleteJoinTokens(before(joinTokensFor), maintainBatch) })},
		{"browser sessions", s.drainInBatches("browser sessions", maintainBatch, func(tx Tx) (int, error) { return tx.DeleteBrowserSessions(now.UnixMilli(), maintainBatch) })},
		{"used sign-ins", s.drainInBatches("used sign-ins", maintainBatch, func(tx Tx) (int, error) { return tx.DeleteUsedSignIns(now.UnixMilli(), maintainBatch) })},
		{"members", s.drainInBatches("members", maintainBatch, func(tx Tx) (int, error) { return tx.DeleteIdleMembers(before(membersFor), maintainBatch) })},
		{"keys", s.drainInBatches("keys", maintainBatch, func(tx Tx) (int, error) { return tx.DeleteAPIKeys(before(keysFor), maintainBatch) })},
		{"idempotency", s.drainInBatches("idempotency", maintainBatch, func(tx Tx) (int, error) { return tx.DeleteIdempotency(before(idempotencyFor), maintainBatch) })},
		{"notifications", s.drainInBatches("notifications", maintainBatch, func(tx Tx) (int, error) { return tx.ForgetDeliveries(now.UnixMilli(), maintainBatch) })},
		{"scaling loads", s.drainInBatches("scaling loads", maintainBatch, func(tx Tx) (int, error) { return tx.DeleteScalingLoads(before(model.LoadsFor), maintainBatch) })},
		{"audit", s.drainInBatches("audit", maintainBatch, func(tx Tx) (int, error) { return tx.DeleteAudit(before(s.cfg.AuditRetention), maintainBatch) })},
	} {
		// Each job has its own timeout, so that a slow or failing job does not block the other jobs.
		bounded, cancel := context.WithTimeout(ctx, maintainTimeout)
		if err := job.do(bounded); err != nil {
			errs = append(errs, fmt.Errorf("forget %s: %w", job.name, err))
		}
		cancel()
	}
	bounded, cancel := context.WithTimeout(ctx, maintainTimeout)
	defer cancel()
	if err := s.checkDomains(bounded, now, rand.Float64()); err != nil {
		errs = append(errs, fmt.Errorf("check domains: %w", err))
	}
	if len(errs) == 0 {
		s.rounds.Inc()
	}
	return errors.Join(errs...)
}

// compactChanges deletes changes that are too old for agents to resume from.
func (s *Service) compactChanges(ctx context.Context) error {
	after := ""
	for {
		var heads []model.Head
		err := s.cfg.Store.View(ctx, func(tx Tx) (err error) {
			heads, err = tx.ListRegionHeads(after, maintainBatch)
			return err
		})
		if err != nil {
			return fmt.Errorf("list heads: %w", err)
		}
		for _, h := range heads {
			after = h.RegionID
			upto := h.Revision - s.cfg.KeepChanges
			if upto <= 0 {
				continue
			}
			err := s.drain(ctx, "changes", maintainBatch, func(tx Tx) (int, error) { return tx.CompactChanges(h.RegionID, upto, maintainBatch) })
			if err != nil {
				return fmt.Errorf("compact feed of region %s: %w", h.RegionID, err)
			}
		}
		if len(heads) < maintainBatch {
			return nil
		}
	}
}

// trimHistory deletes the oldest versions and history entries of apps that have too many.
func (s *Service) trimHistory(ctx context.Context) error {
	versions, entries := int(s.cfg.KeepVersions), s.cfg.KeepHistory
	after := ""
	for {
		var ids []string
		err := s.cfg.Store.View(ctx, func(tx Tx) (err error) {
			ids, err = tx.CrowdedApps(versions+versions/10, entries+entries/10, after, maintainBatch)
			return err
		})
		if err != nil {
			return fmt.Errorf("find apps: %w", err)
		}
		for _, id := range ids {
			after = id
			if err := s.drain(ctx, "versions", maintainBatch, func(tx Tx) (int, error) { return s.trimVersions(tx, id) }); err != nil {
				return fmt.Errorf("trim versions of app %s: %w", id, err)
			}
			if err := s.drain(ctx, "history", maintainBatch, func(tx Tx) (int, error) { return tx.TrimHistory(id, entries, maintainBatch) }); err != nil {
				return fmt.Errorf("trim history of app %s: %w", id, err)
			}
		}
		if len(ids) < maintainBatch {
			return nil
		}
	}
}

// trimVersions locks the app, because a version can only become live, previous or the source of a newer version under
// that lock.
func (s *Service) trimVersions(tx Tx, id string) (int, error) {
	app, err := tx.LockApp("", id)
	if errors.Is(err, model.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return tx.TrimVersions(app, s.cfg.KeepVersions, maintainBatch)
}

func (s *Service) drainInBatches(what string, full int, batch func(Tx) (int, error)) func(context.Context) error {
	return func(ctx context.Context) error { return s.drain(ctx, what, full, batch) }
}

// drain repeats a batch until it deletes fewer rows than full.
func (s *Service) drain(ctx context.Context, what string, full int, batch func(Tx) (int, error)) error {
	for {
		var n int
		err := s.cfg.Store.Update(ctx, func(tx Tx) (err error) {
			n, err = batch(tx)
			return err
		})
		if err == nil {
			s.forgotten.WithLabelValues(what).Add(float64(n))
		}
		if err != nil || n < full {
			return err
		}
	}
}
