// Package client calls one model of a server of the Open Inference Protocol, over HTTP with binary data.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
)

const (
	// callTimeout limits a call. The gateway may hold it while servers load the model.
	callTimeout = time.Minute
	// maxAnswer limits an answer, in bytes.
	maxAnswer = 256 << 20
	header    = "Inference-Header-Content-Length"
)

// Model is a model at a URL.
type Model struct {
	// URL is the address of the server or of the model's host, without a path.
	URL  string
	Name string
}

// Infer runs the model. It returns the outputs by name, and the version that answered.
func (m Model) Infer(ctx context.Context, inputs ...tensor.Tensor) (map[string]tensor.Tensor, string, error) {
	body, jsonLength, err := encodeRequest(inputs)
	if err != nil {
		return nil, "", err
	}
	target := strings.TrimSuffix(m.URL, "/") + "/v2/models/" + url.PathEscape(m.Name) + "/infer"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set(header, strconv.Itoa(jsonLength))
	caller := http.Client{Timeout: callTimeout} // it shares the connections of all clients without a transport
	res, err := caller.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, "", err
	}
	if res.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("%s answered %s: %s", target, res.Status, bytes.TrimSpace(answer))
	}
	return decodeAnswer(answer, res.Header.Get(header))
}

func encodeRequest(inputs []tensor.Tensor) (body []byte, jsonLength int, err error) {
	type input struct {
		tensor.Info
		Parameters map[string]int `json:"parameters"`
	}
	q := struct {
		Parameters map[string]bool `json:"parameters"`
		Inputs     []input         `json:"inputs"`
	}{Parameters: map[string]bool{"binary_data_output": true}}
	for _, t := range inputs {
		q.Inputs = append(q.Inputs, input{tensor.Info{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape}, map[string]int{"binary_data_size": len(t.Data)}})
	}
	if body, err = json.Marshal(q); err != nil {
		return nil, 0, err
	}
	jsonLength = len(body)
	for _, t := range inputs {
		body = append(body, t.Data...)
	}
	return body, jsonLength, nil
}

func decodeAnswer(answer []byte, jsonLength string) (map[string]tensor.Tensor, string, error) {
	n, err := strconv.Atoi(jsonLength)
	if err != nil || n < 0 || n > len(answer) {
		return nil, "", fmt.Errorf("the answer has no valid header %s: %q", header, jsonLength)
	}
	var body struct {
		ModelVersion string `json:"model_version"`
		Outputs      []struct {
			tensor.Info
			Parameters struct {
				Size int `json:"binary_data_size"`
			} `json:"parameters"`
		} `json:"outputs"`
	}
	if err := json.Unmarshal(answer[:n], &body); err != nil {
		return nil, "", fmt.Errorf("the answer cannot be read: %w", err)
	}
	binary := answer[n:]
	outputs := map[string]tensor.Tensor{}
	for _, o := range body.Outputs {
		if o.Parameters.Size < 0 || o.Parameters.Size > len(binary) {
			return nil, "", errors.New("the answer has less data than its outputs")
		}
		t := tensor.Tensor{Name: o.Name, Datatype: o.Datatype, Shape: o.Shape, Data: binary[:o.Parameters.Size]}
		if err := t.Check(); err != nil {
			return nil, "", fmt.Errorf("output '%s': %w", o.Name, err)
		}
		outputs[o.Name] = t
		binary = binary[o.Parameters.Size:]
	}
	return outputs, body.ModelVersion, nil
}
