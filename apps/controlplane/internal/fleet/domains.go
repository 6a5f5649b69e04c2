package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
)

// Verified domains are checked again, because the owner of a name may change. Each round looks up the records of the
// domains with the oldest checks, outside of any transaction, and stores all answers in one transaction. A check
// never removes a domain from an app. An unreachable or failing DNS changes nothing.
const (
	// domainsEvery is how long an answer is valid. A random time of up to half as much is added, so that domains that
	// were verified together are not always checked together.
	domainsEvery = 8 * time.Hour
	// domainsBatch is the number of domains that a round checks, and domainsAtOnce the number of concurrent look-ups.
	// If the DNS does not answer, a round takes half of maintainTimeout.
	domainsBatch  = 200
	domainsAtOnce = 32
	// lookupTimeout is the timeout for one look-up.
	lookupTimeout = 4 * time.Second
	// ourselves is the author of history entries, as in the planner.
	ourselves = "windlass"
)

// checkDomains checks the domains that are due. random is in [0, 1).
func (s *Service) checkDomains(ctx context.Context, now time.Time, random float64) error {
	before := now.Add(-domainsEvery - time.Duration(random*float64(domainsEvery/2))).UnixMilli()
	var due []model.Domain
	err := s.cfg.Store.View(ctx, func(tx Tx) (err error) {
		due, err = tx.DomainsToCheck(before, domainsBatch)
		return err
	})
	if err != nil || len(due) == 0 {
		return err
	}
	found := s.askFor(ctx, due)
	return s.cfg.Store.Update(ctx, func(tx Tx) error { return noteFindings(tx, due, found, now.UnixMilli()) })
}

// askFor looks up the record of each domain.
func (s *Service) askFor(ctx context.Context, due []model.Domain) []model.DomainFinding {
	out := make([]model.DomainFinding, len(due))
	slots := make(chan struct{}, domainsAtOnce)
	var wg sync.WaitGroup
	for i, d := range due {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			bounded, cancel := context.WithTimeout(ctx, lookupTimeout)
			defer cancel()
			out[i] = d.Finding(s.cfg.LookupTXT(bounded, model.DomainRecord(d.Name)+"."))
		})
	}
	wg.Wait()
	return out
}

// noteFindings stores the findings of domains that have not changed since they were read, and adds new findings to
// their apps' histories.
func noteFindings(tx Tx, due []model.Domain, found []model.DomainFinding, at int64) error {
	names := make([]string, len(due))
	asked := make(map[model.Domain]model.DomainFinding, len(due))
	for i, d := range due {
		names[i], asked[d] = d.Name, found[i]
	}
	now, err := tx.LockHeldDomains(names)
	if err != nil {
		return fmt.Errorf("lock %d domains: %w", len(names), err)
	}
	var checks model.DomainChecks
	var history []model.History
	for _, d := range now {
		finding, same := asked[d]
		if !same {
			continue
		}
		next, what, why := d.Checked(finding, at)
		switch finding {
		case model.DomainFound:
			checks.Found = append(checks.Found, d.Name)
		case model.DomainMissing:
			checks.Missing = append(checks.Missing, d.Name)
		case model.DomainUnanswered:
			checks.Unanswered = append(checks.Unanswered, d.Name)
		}
		if next.LapsedAt != 0 && d.LapsedAt == 0 {
			checks.Lapsed = append(checks.Lapsed, d.Name)
		}
		if what != "" {
			history = append(history, model.History{
				ID: ident.New("hst"), WorkspaceID: d.WorkspaceID, AppID: d.AppID, At: at, Who: ourselves, What: what, Why: why,
			})
		}
	}
	if err := tx.NoteDomainChecks(checks, at); err != nil {
		return err
	}
	if len(history) == 0 {
		return nil
	}
	return tx.InsertHistory(history)
}
