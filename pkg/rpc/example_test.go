package rpc_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// smallControlPlane is a control plane with one region.
type smallControlPlane struct {
	windlassv1connect.UnimplementedRegionServiceHandler
}

func (smallControlPlane) ListRegions(context.Context, *windlassv1.ListRegionsRequest) (*windlassv1.ListRegionsResponse, error) {
	return &windlassv1.ListRegionsResponse{Regions: []*windlassv1.Region{{Name: "us-east-1"}}}, nil
}

func (smallControlPlane) GetRegion(_ context.Context, req *windlassv1.GetRegionRequest) (*windlassv1.GetRegionResponse, error) {
	return nil, rpc.Error(connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_REGION, "region", "there is no region "+req.Region)
}

// A Go program calls the API with the generated client. The options add the API key and a deadline.
func Example_client() {
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewRegionServiceHandler(smallControlPlane{}))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true) // as the control plane does without TLS
	server.Start()
	defer server.Close()

	regions := windlassv1connect.NewRegionServiceClient(rpc.NewHTTPClient(rpc.HTTPClientConfig{}), server.URL, rpc.ClientOptions(rpc.ClientConfig{
		Token:     func() string { return "an API key" },
		UserAgent: "example/1.0",
		Timeout:   10 * time.Second,
	})...)

	listed, err := regions.ListRegions(context.Background(), &windlassv1.ListRegionsRequest{})
	if err != nil {
		panic(err)
	}
	for _, r := range listed.Regions {
		fmt.Println(r.Name)
	}
	_, err = regions.GetRegion(context.Background(), &windlassv1.GetRegionRequest{Region: "eu-west-1"})
	fmt.Println(rpc.ReasonOf(err), rpc.DetailOf(err).GetField())
	// Output:
	// us-east-1
	// ERROR_REASON_UNKNOWN_REGION region
}
