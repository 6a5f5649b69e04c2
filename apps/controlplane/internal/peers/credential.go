package peers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CredentialPrefix begins every credential of a peer, so that people recognize a leaked one.
const CredentialPrefix = "wlp_"

// credentialPurpose prevents values that were sealed for another purpose from opening as a peer's credential.
const credentialPurpose = "windlass peer credential"

const (
	// credentialTTL is how long a stolen credential is valid. The clocks of two processes may differ by about as
	// much.
	credentialTTL = 5 * time.Minute
	// credentialFor is how long a credential is used, so that not every call seals one.
	credentialFor = time.Minute
)

type statement struct {
	From      string `json:"f"`
	To        string `json:"t"`
	ExpiresAt int64  `json:"e"`
}

// issueCredential makes the credential for calls to one peer.
func (s *Service) issueCredential(to string, now time.Time) (string, error) {
	data, err := json.Marshal(statement{From: s.cfg.ID, To: to, ExpiresAt: now.Add(credentialTTL).UnixMilli()})
	if err != nil {
		return "", fmt.Errorf("encode peer credential: %w", err)
	}
	sealed, err := s.cfg.Box.Seal(data, credentialPurpose)
	if err != nil {
		return "", fmt.Errorf("issue peer credential: %w", err)
	}
	return CredentialPrefix + base64.RawURLEncoding.EncodeToString(sealed), nil
}

// verify fails unless a peer issued the credential for calls to this process.
func (s *Service) verify(credential string, now time.Time) error {
	body, ok := strings.CutPrefix(credential, CredentialPrefix)
	if !ok {
		return errors.New("this call needs the credential of another process of the control plane")
	}
	sealed, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		return errors.New("the peer credential is damaged")
	}
	data, err := s.cfg.Box.Open(sealed, credentialPurpose)
	if err != nil {
		return errors.New("the peer credential was not issued under this control plane's key file")
	}
	var st statement
	switch err := json.Unmarshal(data, &st); {
	case err != nil:
		return errors.New("the peer credential is damaged")
	case st.To != s.cfg.ID:
		return fmt.Errorf("the call was for another process, %s: is its --peer-advertise the address of this process?", st.To)
	case now.UnixMilli() >= st.ExpiresAt:
		return errors.New("the peer credential has expired: do the clocks agree?")
	}
	return nil
}

// tokenSource returns a function that returns the credential of a call to one peer.
func (s *Service) tokenSource(to string) func() string {
	var mu sync.Mutex
	var token string
	var until time.Time
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		if now.Before(until) {
			return token
		}
		fresh, err := s.issueCredential(to, now)
		if err != nil {
			// The peer refuses the call without a credential.
			s.cfg.Log.Error("cannot sign calls to a peer", "peer", to, "error", err)
			return ""
		}
		token, until = fresh, now.Add(credentialFor)
		return token
	}
}

// admitPeer admits only peers.
func (s *Service) admitPeer(_ context.Context, call rpc.Call) (rpc.Admission, error) {
	token, _ := strings.CutPrefix(call.Header.Get("Authorization"), "Bearer ")
	if err := s.verify(token, time.Now()); err != nil {
		return rpc.Admission{}, rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", err.Error())
	}
	return rpc.Admission{}, nil
}
