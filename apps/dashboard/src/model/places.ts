// Where regions are: by their labels, or by the names that clouds give their regions.

export type Place = { latitude: number; longitude: number };

/** Latitude and longitude of cities, in degrees, with the cloud regions that are there or near. */
const cities: [number, number, string][] = [
  // North America
  [39.0, -77.5, "us-east-1 us-east4 eastus2 us-ashburn-1"],
  [37.4, -79.8, "eastus"],
  [40.0, -83.0, "us-east-2 us-east5 us-gov-east-1"],
  [33.2, -80.0, "us-east1"],
  [41.3, -95.9, "us-central1"],
  [41.6, -93.6, "centralus"],
  [41.9, -87.6, "northcentralus us-chicago-1"],
  [29.4, -98.5, "southcentralus"],
  [32.8, -96.8, "us-south1"],
  [41.1, -104.8, "westcentralus"],
  [37.4, -121.9, "us-west-1 westus us-sanjose-1"],
  [45.7, -120.5, "us-west-2 us-west1 us-gov-west-1"],
  [47.2, -119.9, "westus2"],
  [34.1, -118.2, "us-west2"],
  [40.8, -111.9, "us-west3"],
  [36.2, -115.1, "us-west4"],
  [33.4, -112.1, "westus3 us-phoenix-1"],
  [45.5, -73.6, "ca-central-1 northamerica-northeast1 ca-montreal-1"],
  [43.7, -79.4, "northamerica-northeast2 canadacentral ca-toronto-1"],
  [46.8, -71.2, "canadaeast"],
  [51.0, -114.1, "ca-west-1"],
  [20.6, -100.4, "mx-central-1 northamerica-south1 mexicocentral mx-queretaro-1"],
  // South America
  [-23.5, -46.6, "sa-east-1 southamerica-east1 brazilsouth sa-saopaulo-1"],
  [-33.4, -70.7, "southamerica-west1 chilecentral sa-santiago-1"],
  // Europe
  [53.3, -6.3, "eu-west-1 northeurope"],
  [51.5, -0.1, "eu-west-2 europe-west2 uksouth uk-london-1"],
  [51.5, -3.2, "ukwest uk-cardiff-1"],
  [48.9, 2.4, "eu-west-3 europe-west9 francecentral eu-paris-1"],
  [43.3, 5.4, "francesouth eu-marseille-1"],
  [50.5, 3.9, "europe-west1"],
  [50.8, 4.4, "belgiumcentral"],
  [53.4, 6.8, "europe-west4"],
  [52.4, 4.9, "westeurope eu-amsterdam-1"],
  [50.1, 8.7, "eu-central-1 europe-west3 germanywestcentral eu-frankfurt-1"],
  [52.5, 13.4, "europe-west10 germanynorth"],
  [47.4, 8.5, "eu-central-2 europe-west6 switzerlandnorth eu-zurich-1"],
  [46.2, 6.1, "switzerlandwest"],
  [48.2, 16.4, "austriaeast"],
  [45.5, 9.2, "eu-south-1 europe-west8 italynorth eu-milan-1"],
  [45.1, 7.7, "europe-west12"],
  [41.6, -0.9, "eu-south-2"],
  [40.4, -3.7, "europe-southwest1 spaincentral eu-madrid-1"],
  [52.2, 21.0, "europe-central2 polandcentral"],
  [59.3, 18.1, "eu-north-1 europe-north2 eu-stockholm-1"],
  [60.7, 17.1, "swedencentral"],
  [60.6, 27.2, "europe-north1"],
  [59.9, 10.8, "norwayeast"],
  // Middle East and Africa
  [32.1, 34.8, "il-central-1 me-west1 israelcentral il-jerusalem-1"],
  [26.1, 50.6, "me-south-1"],
  [25.2, 55.3, "me-central-1 uaenorth me-dubai-1"],
  [24.5, 54.4, "uaecentral me-abudhabi-1"],
  [25.3, 51.5, "me-central1 qatarcentral"],
  [26.4, 50.1, "me-central2"],
  [-33.9, 18.4, "af-south-1 southafricawest"],
  [-26.2, 28.0, "africa-south1 southafricanorth af-johannesburg-1"],
  // Asia
  [19.1, 72.9, "ap-south-1 asia-south1 westindia ap-mumbai-1"],
  [17.4, 78.5, "ap-south-2 ap-hyderabad-1"],
  [18.5, 73.9, "centralindia"],
  [13.1, 80.3, "southindia"],
  [28.6, 77.2, "asia-south2"],
  [1.4, 103.8, "ap-southeast-1 asia-southeast1 southeastasia ap-singapore-1"],
  [-6.2, 106.8, "ap-southeast-3 asia-southeast2 indonesiacentral"],
  [3.1, 101.7, "ap-southeast-5 malaysiawest"],
  [13.8, 100.5, "ap-southeast-7 asia-southeast3"],
  [22.3, 114.2, "ap-east-1 asia-east2 eastasia"],
  [25.0, 121.6, "ap-east-2"],
  [24.1, 120.5, "asia-east1"],
  [39.9, 116.4, "cn-north-1 chinanorth chinanorth2 chinanorth3"],
  [31.2, 121.5, "chinaeast chinaeast2 chinaeast3"],
  [37.5, 105.2, "cn-northwest-1"],
  [35.7, 139.7, "ap-northeast-1 asia-northeast1 japaneast ap-tokyo-1"],
  [34.7, 135.5, "ap-northeast-3 asia-northeast2 japanwest ap-osaka-1"],
  [37.6, 127.0, "ap-northeast-2 asia-northeast3 koreacentral ap-seoul-1"],
  [35.2, 129.1, "koreasouth"],
  // Oceania
  [-33.9, 151.2, "ap-southeast-2 australia-southeast1 australiaeast ap-sydney-1"],
  [-37.8, 145.0, "ap-southeast-4 australia-southeast2 australiasoutheast ap-melbourne-1"],
  [-35.3, 149.1, "australiacentral australiacentral2"],
  [-36.8, 174.8, "ap-southeast-6 newzealandnorth"],
];

const known = new Map<string, Place>(cities.flatMap(([latitude, longitude, names]) => names.split(" ").map((name) => [name, { latitude, longitude }] as const)));

/** Labels of a region that say where it is, in degrees. */
export const latitudeLabel = "latitude";
export const longitudeLabel = "longitude";

const degrees = (text: string | undefined, most: number): number | undefined => {
  if (text === undefined || text.trim() === "") return undefined;
  const n = Number(text);
  return Math.abs(n) <= most ? n : undefined;
};

/** The place of the longest name of a cloud's region among the words of the name: `aws-us-east-1-b` is in us-east-1. */
function placeByName(name: string): Place | undefined {
  const words = name.split("-");
  for (let length = words.length; length > 0; length--)
    for (let from = 0; from + length <= words.length; from++) {
      const place = known.get(words.slice(from, from + length).join("-"));
      if (place) return place;
    }
  return undefined;
}

/** Where a region is. Labels come before the name. undefined: not known. */
export function placeOf(region: { name: string; labels: Record<string, string> }): Place | undefined {
  const latitude = degrees(region.labels[latitudeLabel], 90);
  const longitude = degrees(region.labels[longitudeLabel], 180);
  return latitude !== undefined && longitude !== undefined ? { latitude, longitude } : placeByName(region.name);
}
