package restate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/failover"
)

// admin speaks the part of Restate's admin API that registration needs.
type admin struct {
	urls   []string
	set    *failover.Set // of urls
	client *http.Client
}

// deployment is a set of handlers at an address, as Restate knows it.
type deployment struct {
	ID       string `json:"id"`
	URI      string `json:"uri"`
	Services []struct {
		Name string `json:"name"`
	} `json:"services"`
}

func (d deployment) servesService(service string) bool {
	for _, s := range d.Services {
		if s.Name == service {
			return true
		}
	}
	return false
}

func (a admin) listDeployments(ctx context.Context) ([]deployment, error) {
	var list struct {
		Deployments []deployment `json:"deployments"`
	}
	err := a.call(ctx, http.MethodGet, "/deployments", nil, &list)
	return list.Deployments, err
}

// latestDeployment returns the id of the deployment that gets new invocations of the service. It is empty
// if Restate does not know the service.
func (a admin) latestDeployment(ctx context.Context, service string) (string, error) {
	var s struct {
		DeploymentID string `json:"deployment_id"`
	}
	err := a.call(ctx, http.MethodGet, "/services/"+url.PathEscape(service), nil, &s)
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusNotFound {
		return "", nil
	}
	return s.DeploymentID, err
}

// registerEndpoint makes the endpoint's handlers get new invocations. Without force, a registration of
// the same address does not change.
func (a admin) registerEndpoint(ctx context.Context, uri string, force bool) error {
	return a.call(ctx, http.MethodPost, "/deployments", map[string]any{"uri": uri, "force": force}, nil)
}

// moveDeployment gives a deployment another address. Invocations that are pinned to it continue there.
func (a admin) moveDeployment(ctx context.Context, id, uri string) error {
	return a.call(ctx, http.MethodPatch, "/deployments/"+url.PathEscape(id), map[string]any{"uri": uri}, nil)
}

func (a admin) remove(ctx context.Context, id string) error {
	return a.call(ctx, http.MethodDelete, "/deployments/"+url.PathEscape(id)+"?force=true", nil, nil)
}

// pinnedInvocations returns up to limit invocations that can continue only at that deployment.
func (a admin) pinnedInvocations(ctx context.Context, id string, limit int) ([]string, error) {
	return a.listInvocations(ctx, "pinned_deployment_id", id, "status <> 'completed'", limit)
}

// backingOff returns up to limit invocations of the service that wait for their next retry.
func (a admin) backingOff(ctx context.Context, service string, limit int) ([]string, error) {
	return a.listInvocations(ctx, "target_service_name", service, "status = 'backing-off'", limit)
}

func (a admin) listInvocations(ctx context.Context, column, value, and string, limit int) ([]string, error) {
	if strings.ContainsAny(value, `'\`) {
		return nil, fmt.Errorf("restate admin: %q contains a quote or a backslash, which a query cannot contain", value)
	}
	var list struct {
		Rows []struct {
			ID string `json:"id"`
		} `json:"rows"`
	}
	query := fmt.Sprintf("SELECT id FROM sys_invocation WHERE %s = '%s' AND %s LIMIT %d", column, value, and, limit)
	if err := a.call(ctx, http.MethodPost, "/query", map[string]any{"query": query}, &list); err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(list.Rows))
	for _, r := range list.Rows {
		ids = append(ids, r.ID)
	}
	return ids, nil
}

// retry makes Restate retry an invocation now that is backing off.
func (a admin) retry(ctx context.Context, invocation string) error {
	return a.call(ctx, http.MethodPatch, "/invocations/"+url.PathEscape(invocation)+"/resume", nil, nil)
}

func (a admin) killInvocation(ctx context.Context, invocation string) error {
	err := a.call(ctx, http.MethodPatch, "/invocations/"+url.PathEscape(invocation)+"/kill", nil, nil)
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusNotFound {
		return nil // it has ended
	}
	return err
}

// maxAnswer bounds an answer, in bytes. A list of deployments is a few kilobytes.
const maxAnswer = 8 << 20

// call sends a request to the node in use, and to the next one if that node fails. So a change may be made twice; all
// changes of this package may be.
func (a admin) call(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("restate admin: %s %s: %w", method, path, err)
		}
	}
	err := a.set.TryEach(ctx, func(i int) error { return a.callNode(ctx, method, a.urls[i]+path, body, out) })
	if err != nil {
		return fmt.Errorf("restate admin: %s %s: %w", method, path, err)
	}
	return nil
}

func (a admin) callNode(ctx context.Context, method, url string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		return failover.TryNext(err)
	}
	defer discardBody(resp)
	if err := answerOrNext(resp); err != nil || out == nil {
		return err
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// answerOrNext returns the error of an answer, if any. Another node may answer better if this one cannot serve calls
// now.
func answerOrNext(resp *http.Response) error {
	switch {
	case resp.StatusCode/100 == 2:
		return nil
	case resp.StatusCode == http.StatusBadGateway, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		return failover.TryNext(answerError(resp))
	}
	return answerError(resp)
}

// statusError is an answer with another status than 2xx.
type statusError struct {
	code int
	body string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("answered %d: %s", e.code, e.body)
}

func answerError(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, 512))
	if err != nil {
		body = []byte(err.Error())
	}
	return &statusError{code: resp.StatusCode, body: strings.TrimSpace(string(body))}
}

// discardBody reads the rest of a short answer, so that the connection can be reused.
func discardBody(resp *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10))
	_ = resp.Body.Close()
}
