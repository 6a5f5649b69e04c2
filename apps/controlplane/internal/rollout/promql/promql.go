// Package promql queries Prometheus, or a server with the same API, for the figures of
// rollouts' checks. It does not judge them: a figure that it cannot get becomes a problem of
// the measurement, and package plan decides what follows.
//
// The number of concurrent queries is limited. Each query has a deadline, and all queries of one step together have
// another deadline. A query that fails is not repeated before the check's next interval.
package promql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/share"
)

const (
	// queryTimeout is much longer than an instant query over a few minutes takes.
	queryTimeout = 10 * time.Second
	// stepTimeout bounds all queries of a step, so that the step has time left to write the results.
	stepTimeout = 20 * time.Second
	// maxQueries is how many queries this process makes at once: half of the number that Prometheus
	// runs at once by default. Workspaces share them.
	maxQueries = 10
	// maxAnswer is the maximum size of an answer in bytes, much more than one number takes. An answer is larger if a
	// query over a large fleet does not aggregate.
	maxAnswer = 1 << 20
)

// Config configures a Source.
type Config struct {
	// URL of Prometheus, with the path prefix of its API, if any. It may contain a user and a
	// password.
	URL string
	// TokenFile contains a bearer token. It is read for each query. Empty: no token.
	TokenFile string
	// Raw means that queries are sent as tenants wrote them, so that tenants can read every series in Prometheus.
	// Otherwise, queries read only the series of the versions that they compare.
	Raw bool
	// Remote changes the transport, for https. nil: it stays as it is.
	Remote     func(*http.Transport)
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Source takes measurements from Prometheus. It is safe for concurrent use.
type Source struct {
	cfg   Config
	api   v1.API
	slots *share.Slots
	took  *prometheus.HistogramVec
}

// New checks cfg. It does not connect, because Prometheus may start later.
func New(cfg Config) (*Source, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("the URL of Prometheus, %q, is not an http or https URL: use one like http://prometheus:9090", redactText(cfg.URL))
	}
	if cfg.Registerer == nil || cfg.Log == nil {
		return nil, errors.New("promql: Registerer and Log are required")
	}
	base := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // its type is documented
	base.MaxConnsPerHost = maxQueries
	if cfg.Remote != nil {
		cfg.Remote(base)
	}
	client, err := api.NewClient(api.Config{Address: cfg.URL, Client: &http.Client{
		Transport: transport{base: base, tokenFile: cfg.TokenFile},
		// A redirect could send the credentials to another server, or lead to a login page.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}})
	if err != nil {
		return nil, fmt.Errorf("make a client of Prometheus: %w", err)
	}
	took, err := registerDuration(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return &Source{cfg: cfg, api: v1.NewAPI(client), slots: share.NewSlots(maxQueries), took: took}, nil
}

func redactText(text string) string {
	if u, err := url.Parse(text); err == nil {
		return u.Redacted()
	}
	return "(not a URL)"
}

// transport adds credentials, and bounds answers.
type transport struct {
	base      http.RoundTripper
	tokenFile string
}

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if t.tokenFile != "" {
		token, err := os.ReadFile(t.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the token for Prometheus: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{&bounded{resp.Body, maxAnswer}, resp.Body}
	return resp, nil
}

var errTooLarge = fmt.Errorf("the answer is larger than %d bytes: aggregate it to one number, for example with sum()", maxAnswer)

// bounded is a reader that fails after a number of bytes.
type bounded struct {
	io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// Measure takes the measurements that are due. A measurement that fails has a problem in its figures.
func (s *Source) Measure(ctx context.Context, due []plan.Measure) []plan.Measurement {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("Prometheus has not answered all queries within %s", stepTimeout))
	defer cancel()
	out := make([]plan.Measurement, len(due))
	var wg sync.WaitGroup
	for i, m := range due {
		out[i] = plan.Measurement{RegionID: m.RegionID, Check: m.Check, Since: m.Since}
		figures := &out[i].Figures
		problems := make([]error, 4)
		var asked sync.WaitGroup
		at := time.Now()
		for j, one := range []struct {
			query string
			to    **float64
		}{
			{m.Queries.New, &figures.New},
			{m.Queries.NewSamples, &figures.NewSamples},
			{m.Queries.Old, &figures.Old},
			{m.Queries.OldSamples, &figures.OldSamples},
		} {
			if one.query != "" {
				asked.Go(func() { *one.to, problems[j] = s.runQuery(ctx, m, one.query, at) })
			}
		}
		wg.Go(func() {
			asked.Wait()
			out[i].At = time.Now().UnixMilli()
			for _, err := range problems {
				if err != nil {
					figures.Problem = err.Error()
					return
				}
			}
		})
	}
	wg.Wait()
	return out
}

// runQuery returns the result of the query, nil if it has none.
func (s *Source) runQuery(ctx context.Context, m plan.Measure, query string, at time.Time) (figure *float64, err error) {
	if !s.cfg.Raw {
		if query, err = restrictQuery(query, m.Queries.Within); err != nil {
			return nil, fmt.Errorf("the query cannot be read: %w", err)
		}
	}
	if err := s.slots.Acquire(ctx, m.WorkspaceID); err != nil {
		return nil, err
	}
	defer s.slots.Release(m.WorkspaceID)
	begin := time.Now()
	defer func() {
		outcome := "ok"
		if err != nil {
			outcome = "error"
		}
		s.took.WithLabelValues(outcome).Observe(time.Since(begin).Seconds())
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, queryTimeout, fmt.Errorf("Prometheus has not answered within %s", queryTimeout))
	defer cancel()
	value, _, _, err := s.api.Query(ctx, query, at, v1.WithTimeout(queryTimeout))
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "Prometheus did not answer a query", "workspace", m.WorkspaceID, "check", m.Check, "error", err)
		return nil, problemError(ctx, err)
	}
	return figureOf(value)
}

// problemError describes the error for the author of the query. It leaves out addresses and file names, because only the
// operator may see them.
func problemError(ctx context.Context, err error) error {
	var refused *v1.Error
	var unreachable *url.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &refused) && refused.Type == v1.ErrBadData:
		return fmt.Errorf("Prometheus refuses the query: %s", refused.Msg)
	// The message of an error about reading series may contain addresses.
	case errors.As(err, &refused) && refused.Type == v1.ErrExec && !strings.HasPrefix(refused.Msg, "expanding series"):
		return fmt.Errorf("Prometheus fails: %s", refused.Msg)
	case errors.Is(err, errTooLarge):
		return errTooLarge
	case errors.As(err, &refused):
		return fmt.Errorf("Prometheus fails: %s; the control plane's log says why", refused.Type)
	case errors.As(err, &unreachable):
		return errors.New("Prometheus cannot be reached; the control plane's log says why")
	}
	return errors.New("the query to Prometheus failed; the control plane's log says why")
}

// figureOf returns the one number of a query's result, nil if the result is empty.
func figureOf(value model.Value) (*float64, error) {
	switch v := value.(type) {
	case *model.Scalar:
		return new(float64(v.Value)), nil
	case model.Vector:
		switch len(v) {
		case 0:
			return nil, nil //nolint:nilnil // an empty result is no error
		case 1:
			return new(float64(v[0].Value)), nil
		}
		return nil, fmt.Errorf("the query has %d results: aggregate them to one, for example with sum()", len(v))
	}
	return nil, fmt.Errorf("the query's result is a %s: it must be one number", value.Type())
}
