"""How findings are priced: facts that rules read, claims on lost time, and evidence."""
