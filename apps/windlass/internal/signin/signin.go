// Package signin signs people and services in at a control plane, and makes links that sign a browser in to its
// dashboard.
package signin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// timeout bounds a call.
const timeout = 10 * time.Second

// maxAnswer bounds the bytes of an answer that are read.
const maxAnswer = 64 << 10

// Link is a link for one sign-in.
type Link struct {
	URL       string
	ExpiresIn time.Duration
}

// plainLink matches secrets of links that are safe to print on a terminal, whatever server sent them.
var plainLink = regexp.MustCompile(`^wll_[A-Za-z0-9_-]{1,64}$`)

// New creates a link to the dashboard of the control plane at server (a URL). The browser that opens it is
// signed in as the API key or the member of the token. The secret follows the URL's #, so that browsers do not send it.
func New(ctx context.Context, client *http.Client, server, key string) (Link, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	server = strings.TrimSuffix(server, "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server+"/ui/link", http.NoBody)
	if err != nil {
		return Link{}, fmt.Errorf("make a link to the dashboard: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := client.Do(req)
	if err != nil {
		return Link{}, fmt.Errorf("make a link to the dashboard: %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return Link{}, fmt.Errorf("make a link to the dashboard: %w", err)
	}
	var answer struct {
		Link        string `json:"link"`
		ExpiresInMs int64  `json:"expiresInMs"`
		Message     string `json:"message"`
	}
	err = json.Unmarshal(body, &answer)
	switch {
	case res.StatusCode == http.StatusNotFound, res.StatusCode == http.StatusOK && err != nil:
		return Link{}, fmt.Errorf("%s answers %s: the control plane has no dashboard; upgrade it", server, res.Status)
	case err != nil:
		return Link{}, fmt.Errorf("make a link to the dashboard: %s answers %s", server, res.Status)
	case res.StatusCode != http.StatusOK:
		return Link{}, fmt.Errorf("make a link to the dashboard: %s", answer.Message)
	case !plainLink.MatchString(answer.Link):
		return Link{}, errors.New("make a link to the dashboard: the answer has none")
	}
	return Link{URL: server + "/ui/#link=" + answer.Link, ExpiresIn: time.Duration(answer.ExpiresInMs) * time.Millisecond}, nil
}
