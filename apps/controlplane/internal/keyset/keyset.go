// Package keyset moves stored values from one key of the keyset to another: it counts what each key
// sealed, seals values anew under the primary key, and decides whether a key may be removed.
//
// The values of secrets are all that is stored sealed; web-hooks and registries refer to secrets, and of
// API keys, app keys and join tokens only hashes are stored. Agents hold credentials that a key sealed for
// fleet.CredentialTTL. Processes of the control plane note the keys that they read at their start, and the
// one that they seal with, among their peers.
package keyset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/seal"
)

// Tx is what keyset asks of a transaction.
type Tx interface {
	ListSealedValues(keyID uint32, after model.SealedValue, limit int) ([]model.SealedValue, error)
	ResealValues(values []model.ResealedValue) (int64, error)
	CountSealedValues() (map[uint32]int64, error)
	ListPeers(seenWithin int64) ([]model.Peer, error)
	ListPeerKeys() ([]model.PeerKey, error)
}

// Store runs transactions.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
	View(ctx context.Context, fn func(Tx) error) error
}

// running is how recently a process was seen that counts as running. Its row is renewed every few seconds.
const running = time.Minute

// Usage is how the keys are used.
type Usage struct {
	// Values counts the stored values by the key that sealed them.
	Values map[uint32]int64
	// Sealed is how long ago a process was last seen that sealed with the key.
	Sealed map[uint32]time.Duration
	// Processes are the processes that run, with their keys.
	Processes []Process
}

// Process is a process of the control plane that runs.
type Process struct {
	ID, Address string
	// Seals is the key that it seals with. Keys are all that it has; none: it is of an earlier release.
	Seals uint32
	Keys  []uint32
}

// ReadUsage reads how the keys are used.
func ReadUsage(ctx context.Context, store Store) (Usage, error) {
	usage := Usage{Sealed: map[uint32]time.Duration{}}
	err := store.View(ctx, func(tx Tx) (err error) {
		// Processes first: a value that one of them seals after that is one of a process that is known.
		peers, err := tx.ListPeers(running.Milliseconds())
		if err != nil {
			return err
		}
		keys, err := tx.ListPeerKeys()
		if err != nil {
			return err
		}
		usage.note(peers, keys)
		usage.Values, err = tx.CountSealedValues()
		return err
	})
	return usage, err
}

func (u *Usage) note(peers []model.Peer, keys []model.PeerKey) {
	byID := map[string]int{}
	for i, p := range peers {
		byID[p.ID] = i
		u.Processes = append(u.Processes, Process{ID: p.ID, Address: p.Address})
	}
	for _, k := range keys {
		ago := time.Duration(k.UnseenFor) * time.Millisecond
		if last, ok := u.Sealed[k.KeyID]; k.Seals && (!ok || ago < last) {
			u.Sealed[k.KeyID] = ago
		}
		i, ok := byID[k.PeerID]
		if !ok {
			continue
		}
		p := &u.Processes[i]
		p.Keys = append(p.Keys, k.KeyID)
		if k.Seals {
			p.Seals = k.KeyID
		}
	}
}

// CanOpen fails when a process runs that could not open what the key seals.
func (u *Usage) CanOpen(key uint32) error {
	for _, p := range u.Processes {
		if len(p.Keys) == 0 {
			return fmt.Errorf("the control plane %s at %s does not say which keys it has: upgrade it first", p.ID, p.Address)
		}
		if !slices.Contains(p.Keys, key) {
			return fmt.Errorf("the control plane %s at %s does not have key %d: restart it with this keyset first", p.ID, p.Address, key)
		}
	}
	return nil
}

// sealing names the running processes that seal with the key.
func (u *Usage) sealing(key uint32) (addresses []string) {
	for _, p := range u.Processes {
		if p.Seals == key {
			addresses = append(addresses, p.Address)
		}
	}
	return addresses
}

// Removable fails while the key is in use. valid is how long agents' credentials are; 0 removes the key
// although agents may have credentials that it sealed.
func (u *Usage) Removable(key uint32, valid time.Duration) error {
	if n := u.Values[key]; n > 0 {
		return fmt.Errorf("key %d is in use: %d stored values are sealed with it: run keyset reseal first", key, n)
	}
	if at := u.sealing(key); len(at) > 0 {
		return fmt.Errorf("key %d is in use: %d control planes seal with it (%s): restart them with the keyset in which another key is primary",
			key, len(at), strings.Join(at, ", "))
	}
	ago, ok := u.Sealed[key]
	if ok && ago < running {
		return fmt.Errorf("key %d is in use: a control plane sealed with it %s ago: try again in a minute", key, ago.Round(time.Second))
	}
	if ok && ago < valid {
		return fmt.Errorf("key %d is in use: agents may have credentials that it sealed for another %s: wait, or remove it with --end-credentials, after which these agents have to join again",
			key, (valid - ago).Round(time.Minute))
	}
	return nil
}

// Config of Reseal.
type Config struct {
	Store Store
	Box   *seal.Box
	// Batch is how many values one transaction replaces.
	Batch int
	// DryRun opens the values and writes nothing.
	DryRun bool
	// Progress is called after each batch. Nil: it is not.
	Progress func(Result)
}

// Result of Reseal.
type Result struct {
	// Total values that other keys than the primary sealed at the start.
	Total int64
	// Resealed counts the values that the primary seals now, or would without DryRun. Changed counts those
	// that were deleted or resealed by another run meanwhile.
	Resealed, Changed int64
	// Damaged are the values that no key of the set opens.
	Damaged []model.SealedValue
}

// Reseal seals all values that other keys sealed anew with the primary. Each batch is one transaction, and
// a value is replaced only while it is the one that was opened. So it may end at any moment, and run again
// and at the same time elsewhere: what is resealed is not listed again.
func Reseal(ctx context.Context, cfg Config) (Result, error) {
	var result Result
	if cfg.Batch < 1 {
		return result, errors.New("reseal: use a batch of 1 value at least")
	}
	usage, err := ReadUsage(ctx, cfg.Store)
	if err != nil {
		return result, err
	}
	primary := cfg.Box.Primary()
	if err := usage.CanOpen(primary); err != nil {
		return result, err
	}
	for key, n := range usage.Values {
		if key != primary {
			result.Total += n
		}
	}
	var after model.SealedValue
	for {
		var values []model.SealedValue
		err := cfg.Store.View(ctx, func(tx Tx) (err error) {
			values, err = tx.ListSealedValues(primary, after, cfg.Batch)
			return err
		})
		if err != nil || len(values) == 0 {
			return result, err
		}
		after = values[len(values)-1]
		if err := cfg.batch(ctx, values, &result); err != nil {
			return result, err
		}
		if cfg.Progress != nil {
			cfg.Progress(result)
		}
	}
}

func (cfg Config) batch(ctx context.Context, values []model.SealedValue, result *Result) error {
	resealed := make([]model.ResealedValue, 0, len(values))
	for _, v := range values {
		bound := model.SecretContext(v.EnvironmentID, v.Name, v.Version)
		plain, err := cfg.Box.Open(v.Ciphertext, bound)
		if err != nil {
			result.Damaged = append(result.Damaged, v)
			continue
		}
		fresh, err := cfg.Box.Seal(plain, bound)
		if err != nil {
			return err
		}
		resealed = append(resealed, model.ResealedValue{SealedValue: v, Resealed: fresh})
	}
	replaced := int64(len(resealed))
	if !cfg.DryRun {
		err := cfg.Store.Update(ctx, func(tx Tx) (err error) {
			replaced, err = tx.ResealValues(resealed)
			return err
		})
		if err != nil {
			return err
		}
	}
	result.Resealed += replaced
	result.Changed += int64(len(resealed)) - replaced
	return nil
}
