"""A trained sentence encoder, judged by people's opinion before and after."""
